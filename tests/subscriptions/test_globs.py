"""Globs: what they match, that both matchers agree, and that no pattern is expensive."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.subscriptions.globs import ANY_MAX, SEGMENTS_MAX, Glob, GlobIndex, check_bounds

# Few letters, so that names and patterns meet often.
SEGMENTS = st.sampled_from(["a", "b", "aa", "*", "**", "."])
NAMES = st.lists(SEGMENTS, min_size=1, max_size=6).map("/".join)
PATTERNS = st.lists(st.sampled_from(["a", "b", "aa", "*", "**"]), min_size=1, max_size=6).map(
    "/".join
)


def naive(pattern: list[str], name: list[str]) -> bool:
    """The definition, with all its backtracking."""
    if not pattern:
        return not name
    if pattern[0] == "**":
        return any(naive(pattern[1:], name[skip:]) for skip in range(len(name) + 1))
    return bool(name) and pattern[0] in ("*", name[0]) and naive(pattern[1:], name[1:])


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("events", "events"),
        ("events/*", "events/a"),
        ("*/*", "events/a"),
        ("events/**", "events"),
        ("events/**", "events/a/b/c"),
        ("**", "events"),
        ("**/c", "c"),
        ("**/c", "a/b/c"),
        ("a/**/c", "a/c"),
        ("a/**/c", "a/b/b/c"),
        ("a.b/+", "a.b/+"),
        ("größe/*", "größe/ü"),
    ],
)
def test_a_glob_matches(pattern: str, name: str) -> None:
    assert Glob(pattern).matches(name)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("events", "events/a"),
        ("events/*", "events"),
        ("events/*", "events/a/b"),
        ("events/*", "other/a"),
        ("a/**/c", "a/b"),
        ("a.b", "axb"),
        ("**/c", "a/bc"),
        ("event", "events"),
    ],
)
def test_a_glob_does_not_match(pattern: str, name: str) -> None:
    assert not Glob(pattern).matches(name)


@pytest.mark.parametrize("pattern", ["**", "*", "__registry__", "*/**"])
def test_names_of_the_server_itself_are_never_matched(pattern: str) -> None:
    index: GlobIndex[str] = GlobIndex()
    index.add(Glob(pattern), "value")
    for name in ("__registry__", "__other/a"):
        assert not Glob(pattern).matches(name)
        assert index.matching(name) == []


@pytest.mark.parametrize("pattern", ["", "a//b", "/a", "a/", "user-*", "***", "a/b**"])
def test_a_pattern_that_would_not_mean_what_it_says_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        Glob(pattern)


@given(pattern=PATTERNS, name=NAMES)
@example(pattern="**/a/**/a", name="a/a")
@example(pattern="a/**", name="a/**")
def test_the_expression_follows_the_definition(pattern: str, name: str) -> None:
    assert Glob(pattern).matches(name) == naive(pattern.split("/"), name.split("/"))


@given(patterns=st.lists(PATTERNS, max_size=8), name=NAMES)
def test_the_index_finds_exactly_the_globs_that_match(patterns: list[str], name: str) -> None:
    index: GlobIndex[int] = GlobIndex()
    for number, pattern in enumerate(patterns):
        index.add(Glob(pattern), number)
    expected = {i for i, pattern in enumerate(patterns) if Glob(pattern).matches(name)}
    found = index.matching(name)
    assert set(found) == expected
    assert len(found) == len(expected)


@given(kept=st.lists(PATTERNS, max_size=5), removed=st.lists(PATTERNS, max_size=5), name=NAMES)
def test_a_glob_that_was_removed_leaves_no_trace(
    kept: list[str], removed: list[str], name: str
) -> None:
    index: GlobIndex[tuple[str, int]] = GlobIndex()
    only_kept: GlobIndex[tuple[str, int]] = GlobIndex()
    for number, pattern in enumerate(kept):
        index.add(Glob(pattern), ("kept", number))
        only_kept.add(Glob(pattern), ("kept", number))
    for number, pattern in enumerate(removed):
        index.add(Glob(pattern), ("removed", number))
    for number, pattern in enumerate(removed):
        index.remove(Glob(pattern), ("removed", number))
    assert index.matching(name) == only_kept.matching(name)
    if not kept:
        assert not index._root.children


def test_a_hostile_pattern_is_decided_at_once() -> None:
    """With backtracking over every `**` these take longer than the universe has existed."""
    name = "/".join(["a"] * 1000)
    for pattern in ("/".join(["**", "a"] * 400 + ["b"]), "/".join(["**", "*"] * 400 + ["b"])):
        index: GlobIndex[int] = GlobIndex()
        index.add(Glob(pattern), 1)
        assert not Glob(pattern).matches(name)
        assert index.matching(name) == []


@pytest.mark.parametrize(
    ("pattern", "most"),
    [
        ("/".join(["a"] * (SEGMENTS_MAX + 1)), f"at most {SEGMENTS_MAX} segments"),
        ("/".join(["**", "a"] * (ANY_MAX + 1)), f"at most {ANY_MAX} times"),
    ],
)
def test_a_new_pattern_has_bounds(pattern: str, most: str) -> None:
    with pytest.raises(ValueError, match=most):
        check_bounds(Glob(pattern))
    check_bounds(Glob("/".join(["a"] * (SEGMENTS_MAX - 2 * ANY_MAX) + ["**", "b"] * ANY_MAX)))


def test_only_what_stands_between_two_stars_is_searched_for() -> None:
    assert [Glob(p).is_searching for p in ("a/*/b", "a/**", "**/b", "a/**/b", "**/a/**")] == [
        False, False, False, False, True,
    ]  # fmt: skip
