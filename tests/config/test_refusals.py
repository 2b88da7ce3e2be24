"""What a refusal says: one sentence with the name, the source and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.helpers import load_env, refusal, write


def test_a_bad_value_in_a_variable_names_the_key_the_variable_and_what_is_allowed(
    tmp_path: Path,
) -> None:
    assert str(refusal(tmp_path, environ={"DS_SERVER__PORT": "http"})) == (
        'server.port = "http" (from DS_SERVER__PORT) is not allowed: '
        "it must be a whole number from 0 to 65535."
    )


def test_a_bad_value_in_a_file_names_the_file(tmp_path: Path) -> None:
    assert str(refusal(tmp_path, toml='[storage]\nmode = "disk"\n')) == (
        'storage.mode = "disk" (from config/local.toml) is not allowed: '
        "it must be one of memory, file-fast, file-durable, acid, redb."
    )


def test_a_bad_flag_names_the_flag(tmp_path: Path) -> None:
    error = refusal(tmp_path, flags={"server.port": "99999"})
    assert 'server.port = "99999" (from --port)' in str(error)


def test_a_bad_rust_log_names_rust_log(tmp_path: Path) -> None:
    error = refusal(tmp_path, environ={"RUST_LOG": "debgu"})
    assert 'log.rust_log = "debgu" (from RUST_LOG)' in str(error)


def test_the_facts_are_fields(tmp_path: Path) -> None:
    error = refusal(tmp_path, environ={"DS_SERVER__PORT": "http"})
    assert (error.key, error.source) == ("server.port", "DS_SERVER__PORT")
    assert error.allowed == "a whole number from 0 to 65535"


def test_a_bad_value_is_refused_even_where_a_later_layer_hides_it(tmp_path: Path) -> None:
    environ = {"DS_SERVER__PORT": "80"}
    error = refusal(tmp_path, toml='[server]\nport = "http"\n', environ=environ)
    assert error.source == "config/local.toml"


def test_an_unknown_key_in_a_file_gets_the_nearest_one_and_the_whole_section(
    tmp_path: Path,
) -> None:
    assert str(refusal(tmp_path, toml="[http]\nkeep_alive_sec = 3\n")) == (
        "http.keep_alive_sec in config/local.toml is not a setting "
        "(did you mean http.keep_alive_secs?); "
        "[http] has cors_origins, keep_alive_secs, header_timeout_secs, body_timeout_secs, "
        "answer_timeout_secs."
    )


def test_an_unknown_variable_gets_the_nearest_variable(tmp_path: Path) -> None:
    error = refusal(tmp_path, environ={"DS_SERVER__PROT": "80"})
    assert error.suggestion == "DS_SERVER__PORT"
    sentence = str(error)
    assert sentence.startswith("The environment variable DS_SERVER__PROT is not a setting (did you")


@pytest.mark.parametrize("name", ["DS_Server__Port", "DS_SERVER__PORT__X", "DS___", "DS_X__Y"])
def test_any_other_variable_with_the_prefix_and_a_double_underscore_is_refused(
    tmp_path: Path, name: str
) -> None:
    assert refusal(tmp_path, environ={name: "1"}).source == name


def test_a_key_in_the_wrong_section_is_pointed_to_the_right_one(tmp_path: Path) -> None:
    error = refusal(tmp_path, toml='[server]\ncors_origins = "*"\n')
    assert error.suggestion == "http.cors_origins"


def test_a_key_outside_any_section_is_pointed_into_one(tmp_path: Path) -> None:
    assert refusal(tmp_path, toml="port = 80\n").suggestion == "server.port"


def test_an_unknown_section_lists_the_sections(tmp_path: Path) -> None:
    error = refusal(tmp_path, toml="[zebra]\nstripes = 3\n")
    assert str(error) == (
        "zebra.stripes in config/local.toml is not a setting; "
        "the sections are server, http, log, tls, limits, storage, webhooks, streams."
    )


def test_a_section_that_is_no_table_is_refused(tmp_path: Path) -> None:
    error = refusal(tmp_path, toml="server = 80\n")
    assert str(error).startswith("server in config/local.toml must be a table")


def test_a_table_where_a_value_belongs_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, toml="[server.port]\nx = 1\n").key == "server.port"


def test_a_missing_config_file_says_where_it_was_looked_for(tmp_path: Path) -> None:
    error = refusal(tmp_path, config_file="none.toml")
    assert str(error) == (
        f"The configuration file none.toml does not exist: looked for {tmp_path / 'none.toml'}."
    )


def test_a_missing_profile_says_where_it_was_looked_for(tmp_path: Path) -> None:
    error = refusal(tmp_path, profile="prdo")
    assert f"looked for {tmp_path / 'config/prdo.toml'}" in str(error)


@pytest.mark.parametrize("profile", ["", "../x", "a/b", ".hidden", "a b"])
def test_a_profile_is_a_name_not_a_path(tmp_path: Path, profile: str) -> None:
    assert "is not a profile" in str(refusal(tmp_path, profile=profile))


@pytest.mark.parametrize("name", ["config/default.toml", "config/local.toml"])
def test_a_file_that_is_not_toml_is_refused_with_its_line(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, "[server]\nport =\n")
    error = refusal(tmp_path)
    assert str(error).startswith(f"The configuration file {name} is not valid TOML (")
    assert "line 2" in str(error)


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b'[server]\nhost = "\xff"\n')
    assert "is not UTF-8 (at byte 17)" in str(refusal(tmp_path, config_file="x.toml"))


def test_a_directory_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    assert "cannot be read (Is a directory)" in str(refusal(tmp_path, config_file="."))


def test_every_refusal_is_one_line_of_bounded_length(tmp_path: Path) -> None:
    error = refusal(tmp_path, environ={"DS_STORAGE__MODE": "a\nb" * 10_000})
    assert "\n" not in str(error)
    assert len(str(error)) < 300


def test_one_tls_path_without_the_other_names_both_and_the_source(tmp_path: Path) -> None:
    assert str(refusal(tmp_path, environ={"DS_TLS__KEY_PATH": "k.pem"})) == (
        "tls.key_path is set but tls.cert_path is not: set both or neither "
        "(tls.key_path is from DS_TLS__KEY_PATH)."
    )


def test_a_tls_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "c.pem", "")
    environ = {"DS_TLS__CERT_PATH": "c.pem", "DS_TLS__KEY_PATH": "k.pem"}
    assert str(refusal(tmp_path, environ=environ)) == (
        'tls.key_path = "k.pem" (from DS_TLS__KEY_PATH) must be a file that can be read: '
        "No such file or directory."
    )


def test_tls_files_that_can_be_read_are_accepted(tmp_path: Path) -> None:
    write(tmp_path, "c.pem", "")
    write(tmp_path, "k.pem", "")
    loaded = load_env(tmp_path, DS_TLS__CERT_PATH="c.pem", DS_TLS__KEY_PATH="k.pem")
    assert loaded.config.tls.cert_path == Path("c.pem")


def test_a_body_budget_below_the_body_limit_names_its_source(tmp_path: Path) -> None:
    error = refusal(tmp_path, environ={"DS_LIMITS__MAX_BODY_BYTES": "100000000"})
    assert "limits.max_body_bytes is from DS_LIMITS__MAX_BODY_BYTES" in str(error)
