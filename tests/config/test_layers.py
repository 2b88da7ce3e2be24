"""Which layer decides a value, and what is said about it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config import SETTINGS, Config, load
from tests.config.helpers import load_env, load_toml, write

# In order: later wins. Each layer sets server.port to a number of its own.
FILES = ("config/default.toml", "config/dev.toml", "config/local.toml", "override.toml")
LAYERS = (*FILES, "DS_SERVER__PORT", "--port")


@settings(deadline=None)  # it writes files
@given(present=st.sets(st.sampled_from(LAYERS)))
def test_the_last_layer_that_sets_a_value_decides_it_and_is_its_source(present: set[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        cwd = Path(directory)
        for name in FILES:
            port = 1000 + LAYERS.index(name)
            write(cwd, name, f"[server]\nport = {port}\n" if name in present else "")
        environ = {"DS_SERVER__PORT": "1004"} if "DS_SERVER__PORT" in present else {}
        flags = {"server.port": "1005"} if "--port" in present else {}
        loaded = load("dev", "override.toml", flags, environ, cwd)
    winner = max(present, key=LAYERS.index, default="default")
    assert loaded.sources["server.port"] == winner
    expected = 1000 + LAYERS.index(winner) if present else 4437
    assert loaded.config.server.port == expected


def test_a_layer_changes_only_the_keys_it_names(tmp_path: Path) -> None:
    write(tmp_path, "config/default.toml", "[server]\nport = 1\ndrain_secs = 3\n")
    write(tmp_path, "config/local.toml", "[server]\nport = 2\n")
    server = load(environ={}, cwd=tmp_path).config.server
    assert (server.port, server.drain_secs) == (2, 3)


def test_without_files_variables_and_flags_the_defaults_hold(tmp_path: Path) -> None:
    loaded = load(environ={}, cwd=tmp_path)
    assert loaded.config == Config()
    assert loaded.files == ()
    assert loaded.sources == {setting.key: "default" for setting in SETTINGS}


def test_a_profile_that_nobody_named_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, "config/dev.toml", "[server]\nport = 1\n")
    assert load(environ={}, cwd=tmp_path).config.server.port == 4437


def test_files_that_were_read_are_listed_in_order(tmp_path: Path) -> None:
    for name in ("config/local.toml", "config/default.toml", "more.toml"):
        write(tmp_path, name, "")
    loaded = load(config_file="more.toml", environ={}, cwd=tmp_path)
    assert loaded.files == ("config/default.toml", "config/local.toml", "more.toml")


def test_a_file_named_twice_counts_at_its_last_place(tmp_path: Path) -> None:
    write(tmp_path, "config/default.toml", "[server]\nport = 1\n")
    write(tmp_path, "config/dev.toml", "[server]\nport = 2\n")
    loaded = load("dev", "config/default.toml", environ={}, cwd=tmp_path)
    assert loaded.config.server.port == 1


def test_an_absolute_config_file_is_read_where_it_is(tmp_path: Path) -> None:
    write(tmp_path, "elsewhere/more.toml", "[server]\nport = 9\n")
    path = tmp_path / "elsewhere/more.toml"
    loaded = load(config_file=path, environ={}, cwd=tmp_path / "elsewhere")
    assert loaded.config.server.port == 9
    assert loaded.sources["server.port"] == str(path)


def test_a_flag_that_is_none_was_not_given(tmp_path: Path) -> None:
    loaded = load(flags={"server.port": None}, environ={}, cwd=tmp_path)
    assert loaded.sources["server.port"] == "default"


def test_rust_log_wins_over_its_ds_variable(tmp_path: Path) -> None:
    loaded = load_env(tmp_path, RUST_LOG="debug", DS_LOG__RUST_LOG="warn")
    assert loaded.config.log.rust_log == "debug"
    assert loaded.sources["log.rust_log"] == "RUST_LOG"


def test_rust_log_wins_over_files(tmp_path: Path) -> None:
    write(tmp_path, "config/local.toml", '[log]\nrust_log = "warn"\n')
    assert load_env(tmp_path, RUST_LOG="error").config.log.rust_log == "error"


def test_an_empty_rust_log_is_not_set(tmp_path: Path) -> None:
    loaded = load_env(tmp_path, RUST_LOG="", DS_LOG__RUST_LOG="warn")
    assert loaded.config.log.rust_log == "warn"


@pytest.mark.parametrize("name", ["DS_SERVER_URL", "DS_PORT", "XDS_SERVER__PORT", "SERVER__PORT"])
def test_a_name_without_the_prefix_or_the_double_underscore_is_left_alone(
    tmp_path: Path, name: str
) -> None:
    assert load_env(tmp_path, **{name: "http://server:4437"}).config == Config()


def test_the_process_environment_and_directory_are_used_unless_others_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "config/local.toml", "[server]\ndrain_secs = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DS_SERVER__PORT", "7")
    server = load().config.server
    assert (server.port, server.drain_secs) == (7, 1)


def test_an_empty_variable_unsets_what_a_file_set(tmp_path: Path) -> None:
    write(tmp_path, "config/local.toml", '[server]\npublic_url = "https://a.example"\n')
    assert load_env(tmp_path, DS_SERVER__PUBLIC_URL="").config.server.public_url is None


def test_an_empty_section_sets_nothing(tmp_path: Path) -> None:
    assert load_toml(tmp_path, "[server]\n").config == Config()
