"""The documentation is complete and true where a program can tell."""

from __future__ import annotations

import json
import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from headrace.config import SETTINGS
from headrace.protocol.responses import PROBLEMS
from headrace.subscriptions.errors import PROBLEMS as CODES
from headrace.subscriptions.errors import problem_name
from tests.tree import markdown
from tests.tree.markdown import DOCS, ROOT

REQUIRED = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "SPEC_VERSION.md",
    "Makefile",
    "mkdocs.yml",
    ".ci/run",
    "requirements/run.txt",
    "requirements/dev.txt",
    "tests/conformance/package.json",
    "tests/conformance/package-lock.json",
    "docs/index.md",
    "docs/architecture.md",
    "docs/guarantees.md",
    "docs/configuration.md",
    "docs/operating.md",
    "docs/protocol.md",
    "docs/behaviours.md",
    "docs/gaps.md",
    "docs/compatibility.md",
    "docs/protocol-governance.md",
    "docs/ecosystem-interop.md",
)

# Written in pieces, so that this file does not name them itself.
REGISTRY_HOSTS = ("registry." + "npmjs.org", "pypi" + ".org", "pythonhosted" + ".org")
MACHINE_PATHS = re.compile("|".join("/" + name + r"/[\w.-]" for name in ("root", "home", "work")))

SPEC = "https://github.com/durable-streams/durable-streams/blob/{commit}/PROTOCOL.md"
CODE_SPAN = re.compile(r"`([^`]+)`")


def read(path: Path | str) -> str:
    return (ROOT / path).read_text("utf-8")


@cache
def pinned_commit() -> str:
    match = re.search(r"\b[0-9a-f]{40}\b", read("SPEC_VERSION.md"))
    assert match, "SPEC_VERSION.md pins no upstream commit"
    return match[0]


@cache
def spec_links() -> dict[str, str]:
    """Every numbered section of the pinned PROTOCOL.md: `§5.1` to its address."""
    page = SPEC.format(commit=pinned_commit())
    sections = (line.split() for line in read("tests/tree/spec_sections.txt").splitlines())
    return {f"§{number}": f"{page}#{anchor}" for number, anchor in sections}


@cache
def suite_tests() -> frozenset[str]:
    return frozenset(read("tests/conformance/suite_tests.txt").splitlines())


@cache
def gap_ids() -> tuple[str, ...]:
    return tuple(re.findall(r"^## (GAP-\d{3})$", read("docs/gaps.md"), re.MULTILINE))


# --- presence ---


@pytest.mark.parametrize("path", REQUIRED)
def test_a_required_file_exists_and_says_something(path: str) -> None:
    assert (ROOT / path).is_file()
    assert read(path).strip()


def test_the_ci_entry_point_can_be_run() -> None:
    assert os.access(ROOT / ".ci/run", os.X_OK)


def test_the_suite_version_pinned_for_readers_is_the_one_installed() -> None:
    manifest = json.loads(read("tests/conformance/package.json"))
    version = manifest["devDependencies"]["@durable-streams/server-conformance-tests"]
    assert f"@durable-streams/server-conformance-tests {version}" in read("SPEC_VERSION.md")
    assert version in read("docs/compatibility.md")


def test_what_is_on_no_index_is_installed_from_a_clone() -> None:
    """Until a release is published, `pip install headrace` would fetch a stranger's package."""
    pages = [page.relative_to(markdown.ROOT).as_posix() for page in markdown.pages()]
    sources = (markdown.ROOT / "src").rglob("*.py")
    places = [*pages, *(source.relative_to(markdown.ROOT).as_posix() for source in sources)]
    by_name = re.compile(r"(pip|pipx|uv tool|uv pip) install ['\"]?headrace\b")
    assert [place for place in places if by_name.search(read(place))] == []


@pytest.mark.parametrize("page", ["README.md", "docs/cli.md"])
def test_a_reader_learns_how_to_reach_the_command(page: str) -> None:
    text = read(page)
    for way in (".venv/bin/headrace", "pipx install .", "uv tool install ."):
        assert way in text, way


# --- settings and metrics ---


@pytest.mark.parametrize("key", [setting.key for setting in SETTINGS])
def test_a_setting_is_documented_with_its_variable_and_default(key: str) -> None:
    setting = next(setting for setting in SETTINGS if setting.key == key)
    rows = [row for row in markdown.table_rows(read("docs/configuration.md")) if f"`{key}`" in row]
    assert len(rows) == 1, f"docs/configuration.md has {len(rows)} rows for {key}"
    assert f"`{setting.env}`" in rows[0]
    assert shown(setting.default) in rows[0]


def shown(default: object) -> str:
    """A default as the page writes it."""
    if default is None or default == ():
        return "unset"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, float):
        return f"`{default:g}`"
    if isinstance(default, tuple):
        return f"`{','.join(map(str, default))}`"
    return f"`{default}`"


def test_no_setting_is_documented_that_does_not_exist() -> None:
    documented = set(re.findall(r"\bDS_[A-Z]+__[A-Z_]+\b", read("docs/configuration.md")))
    assert documented - {setting.env for setting in SETTINGS} == set()


def test_every_metric_is_documented() -> None:
    from headrace.http.metrics import METRICS

    text = read("docs/operating.md")
    assert [metric for metric in METRICS if f"`{metric}`" not in text] == []


def test_every_problem_type_is_documented_with_its_status() -> None:
    rows = {row[0]: row[1] for row in markdown.table_rows(read("docs/protocol.md"))}
    for problem in PROBLEMS.values():
        assert rows.get(f"`{problem.name}`", "").startswith(str(problem.status)), problem.name


def test_every_code_of_the_subscription_api_is_documented() -> None:
    rows = [tuple(row) for row in markdown.table_rows(read("docs/protocol.md"))]
    for code, problem in CODES.items():
        assert (f"`{code}`", f"`{problem_name(code)}`", str(problem.status)) in rows


# --- behaviours, gaps, decisions ---


def behaviours() -> list[list[str]]:
    return list(markdown.table_rows(read("docs/behaviours.md")))


def test_the_behaviour_table_is_there() -> None:
    assert len(behaviours()) > 100


def test_every_behaviour_rests_on_the_spec_a_test_or_a_gap() -> None:
    wrong = [f"{row[0]}: {problem}" for row in behaviours() for problem in faults(row[-1])]
    assert wrong == []


def faults(evidence: str) -> list[str]:
    """What is wrong with one row's evidence; it must have some, and all of it must resolve."""
    sections = re.findall(r"\[(§[\d.]+)\]", evidence)
    gaps = re.findall(r"\[(GAP-\d{3})\]\(gaps\.md#gap-(\d{3})\)", evidence)
    spans = CODE_SPAN.findall(evidence)
    problems = [f"no section {section}" for section in sections if section not in spec_links()]
    problems += [f"no {gap}" for gap, number in gaps if gap not in gap_ids() or number != gap[4:]]
    problems += [f"no such test: {span}" for span in spans if not names_a_test(span)]
    return problems if sections or gaps or spans else ["nothing is given"]


def names_a_test(span: str) -> bool:
    if span in suite_tests():
        return True
    path, _, function = span.partition("::")
    return (ROOT / path).is_file() and f"def {function}(" in read(path)


def test_spec_references_point_into_the_pinned_document() -> None:
    for page in markdown.pages():
        for label, target in markdown.definitions(page.read_text("utf-8")).items():
            if label.startswith("§"):
                assert target == spec_links().get(label), f"{markdown.name(page)}: {label}"


def test_gaps_stand_in_order_and_each_says_what_we_chose() -> None:
    ids = gap_ids()
    assert ids == tuple(sorted(set(ids)))
    for section in re.split(r"^## GAP-", read("docs/gaps.md"), flags=re.MULTILINE)[1:]:
        assert "**Silent:**" in section, section[:40]
        assert "**Chosen:**" in section, section[:40]


def test_decisions_have_a_number_of_their_own_and_name_their_price() -> None:
    pages = sorted((DOCS / "decisions").glob("[0-9]*.md"))
    assert len({page.name[:4] for page in pages}) == len(pages)
    for page in pages:
        headings = markdown.anchors(page.read_text("utf-8"))
        assert {"context", "decision", "given-up"} <= headings, page.name


# --- links and leaks ---


@pytest.mark.parametrize("page", markdown.pages(), ids=markdown.name)
def test_every_internal_link_resolves(page: Path) -> None:
    text = page.read_text("utf-8")
    for link in markdown.links(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), f"{markdown.name(page)} links to {link}"
        if fragment:
            assert fragment in markdown.anchors(target.read_text("utf-8")), link


def test_reference_links_are_all_defined() -> None:
    for page in markdown.pages():
        text = page.read_text("utf-8")
        used = set(re.findall(r"\[(§[\d.]+)\](?!:)", markdown.prose(text)))
        assert used - set(markdown.definitions(text)) == set(), markdown.name(page)


@cache
def files_in_git() -> tuple[Path, ...]:
    """What is committed or would be: tracked files and new ones that are not ignored."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git work tree")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    paths = (ROOT / name.decode() for name in listed.split(b"\0") if name)
    return tuple(path for path in paths if path.is_file())


def test_no_file_names_a_package_registry_or_a_path_of_one_machine() -> None:
    leaks = []
    for path in files_in_git():
        text = path.read_text("utf-8", "ignore")
        leaks += [f"{path.relative_to(ROOT)}: {host}" for host in REGISTRY_HOSTS if host in text]
        leaks += [f"{path.relative_to(ROOT)}: {found}" for found in MACHINE_PATHS.findall(text)]
    assert leaks == []


def test_locks_name_no_address() -> None:
    locks = [*ROOT.glob("requirements/*.txt"), *ROOT.glob("tests/*/package-lock.json")]
    locks.append(ROOT / "examples/package-lock.json")
    assert [lock.name for lock in locks if "://" in lock.read_text("utf-8")] == []


def test_the_dev_lock_holds_the_run_lock() -> None:
    run, dev = (pins(f"requirements/{name}.txt") for name in ("run", "dev"))
    assert run - dev == set(), "run `make lock`"


def pins(lock: str) -> set[str]:
    return set(re.findall(r"^([\w.-]+==[^\s;\\]+)", read(lock), re.MULTILINE))
