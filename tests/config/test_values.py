"""What each kind of setting accepts and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import (
    SETTINGS,
    Config,
    ConfigError,
    Http,
    Limits,
    Server,
    Setting,
    Storage,
    Tls,
    as_text,
)
from tests.config.helpers import load_env, load_toml


def refused(key: str, raw: object) -> bool:
    setting = next(s for s in SETTINGS if s.key == key)
    try:
        setting.parse(raw, "test")
    except ConfigError:
        return True
    return False


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.key)
def test_a_default_survives_being_written_as_a_variable(setting: Setting) -> None:
    assert setting.parse(as_text(setting.default), setting.env) == setting.default


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.key)
def test_a_parsed_value_parses_to_itself(setting: Setting) -> None:
    assert setting.parse(setting.default, None) == setting.default


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.key)
@given(raw=st.one_of(st.text(), st.binary(), st.floats(), st.integers(), st.dictionaries(
    st.text(), st.integers()), st.lists(st.text()), st.booleans(), st.dates()))  # fmt: skip
def test_whatever_is_given_is_a_value_or_a_config_error(setting: Setting, raw: object) -> None:
    try:
        value = setting.parse(raw, "test")
    except ConfigError:
        return
    assert setting.parse(value, "test") == value


@given(secs=st.floats(min_value=0.001, max_value=86_400))
def test_seconds_may_be_fractions(secs: float) -> None:
    assert Server(long_poll_timeout_secs=secs).long_poll_timeout_secs == secs


def test_a_fraction_of_a_second_is_read_from_a_variable_and_from_toml(tmp_path: Path) -> None:
    environ = {"DS_SERVER__LONG_POLL_TIMEOUT_SECS": "0.5"}
    assert load_env(tmp_path, **environ).config.server.long_poll_timeout_secs == 0.5
    loaded = load_toml(tmp_path, "[server]\nlong_poll_timeout_secs = 0.25\n")
    assert loaded.config.server.long_poll_timeout_secs == 0.25


@pytest.mark.parametrize("raw", ["nan", "inf", "-1", "1e3", "1_0", "", "2s", True, "86401", -0.5])
def test_seconds_are_a_plain_decimal_number_of_at_most_a_day(raw: object) -> None:
    assert refused("server.drain_secs", raw)


def test_zero_seconds_are_refused_where_zero_switches_nothing_off() -> None:
    assert refused("server.long_poll_timeout_secs", 0)
    assert Server(sse_reconnect_interval_secs=0).sse_reconnect_interval_secs == 0


@pytest.mark.parametrize("raw", ["65536", "-1", "80.0", 80.0, "0x50", "4_437", "٤", "", True, None])
def test_a_port_is_a_whole_number_in_range(raw: object) -> None:
    assert refused("server.port", raw)


def test_a_number_may_have_spaces_around_it(tmp_path: Path) -> None:
    assert load_env(tmp_path, DS_SERVER__PORT=" 80 ").config.server.port == 80


@pytest.mark.parametrize(
    ("raw", "value"),
    [("true", True), ("1", True), ("TRUE", True), ("false", False), ("0", False), (1, True)],
)
def test_booleans_are_true_false_1_and_0(raw: object, value: bool) -> None:
    setting = next(s for s in SETTINGS if s.key == "log.access")
    assert setting.parse(raw, "test") is value


@pytest.mark.parametrize("raw", ["yes", "on", "", 2, 1.0, "t"])
def test_other_spellings_of_booleans_are_refused(raw: object) -> None:
    assert refused("log.access", raw)


@pytest.mark.parametrize(
    "toml", ['["https://a.example", "https://b.example"]', '"https://a.example, https://b.example"']
)
def test_a_list_in_toml_is_an_array_or_a_string_with_commas(tmp_path: Path, toml: str) -> None:
    http = load_toml(tmp_path, f"[http]\ncors_origins = {toml}\n").config.http
    assert http.cors_origins == ("https://a.example", "https://b.example")


@pytest.mark.parametrize(
    "raw",
    ["*,https://a.example", "a.example", "https://a.example/", "https://a.example/x", "null",
     "https://a.example:99999", ["https://a.example", 3]],
)  # fmt: skip
def test_cors_origins_are_a_star_alone_or_origins_without_a_path(raw: object) -> None:
    assert refused("http.cors_origins", raw)


def test_no_origin_is_the_empty_list(tmp_path: Path) -> None:
    assert Config().http.cors_origins == ()
    assert load_env(tmp_path, DS_HTTP__CORS_ORIGINS="").config.http.cors_origins == ()


def test_an_origin_is_kept_as_browsers_send_it() -> None:
    given_as = ("HTTPS://App.Example:443", "http://[::1]:80", "https://a.example:8443")
    kept = ("https://app.example", "http://[::1]", "https://a.example:8443")
    assert Http(cors_origins=given_as).cors_origins == kept


def test_trusted_proxies_are_addresses_cidrs_and_the_word_loopback(tmp_path: Path) -> None:
    loaded = load_env(tmp_path, DS_SERVER__TRUSTED_PROXIES="10.0.0.0/8, loopback,192.0.2.1")
    assert loaded.config.server.trusted_proxies == ("10.0.0.0/8", "loopback", "192.0.2.1/32")


@pytest.mark.parametrize("raw", ["localhost", "10.0.0.1/8", "10.0.0.0/33", "*", [10]])
def test_other_trusted_proxies_are_refused(raw: object) -> None:
    assert refused("server.trusted_proxies", raw)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "localhost", "streams.internal", "[::1]"])
def test_a_host_is_a_name_or_an_address(host: str) -> None:
    assert Server(host=host).host == host.strip("[]")


@pytest.mark.parametrize("raw", ["", "*", "http://localhost", "127.0.0.1:80", "256.0.0.1", "a b"])
def test_other_hosts_are_refused(raw: object) -> None:
    assert refused("server.host", raw)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("streams.internal", False)],
)  # fmt: skip
def test_a_server_knows_whether_only_this_machine_can_reach_it(host: str, loopback: bool) -> None:
    assert Server(host=host).is_loopback is loopback


def test_a_public_url_loses_its_last_slash() -> None:
    assert Server(public_url="https://a.example/s/").public_url == "https://a.example/s"


@pytest.mark.parametrize(
    "raw",
    ["a.example", "/v1", "ftp://a.example", "https://", "https://a.example?x=1", "https://a b",
     "https://a.example:0", "https://a.example:99999", "https://u:p@a.example", "https://a#f"],
)  # fmt: skip
def test_a_public_url_is_absolute_and_plain(raw: str) -> None:
    assert refused("server.public_url", raw)


@pytest.mark.parametrize("raw", ["", "/", "v1", "/v1/", "/v1//s", "/v1/../s", "/v1?x", "/a%2Fb"])
def test_a_stream_root_is_a_plain_absolute_path(raw: str) -> None:
    assert refused("server.stream_root", raw)


@pytest.mark.parametrize("mode", ["memory", "file-fast", "file-durable", "acid"])
def test_storage_modes_keep_their_names(mode: str) -> None:
    assert Storage(mode=mode).mode == mode


def test_redb_is_another_name_of_acid() -> None:
    assert Storage(mode="redb").mode == "acid"


@pytest.mark.parametrize("count", [2**n for n in range(9)])
def test_shard_counts_are_powers_of_two_up_to_256(count: int) -> None:
    assert Storage(acid_shard_count=count).acid_shard_count == count


@pytest.mark.parametrize("count", [0, 3, 24, 257, 512, "x"])
def test_other_shard_counts_are_refused(count: object) -> None:
    assert refused("storage.acid_shard_count", count)


def test_webhooks_go_to_this_machine_only_when_told_so(tmp_path: Path) -> None:
    assert Config().webhooks.allow_loopback is False
    loaded = load_toml(tmp_path, "[webhooks]\nallow_loopback = true\n")
    assert loaded.config.webhooks.allow_loopback is True
    assert refused("webhooks.allow_loopback", "auto")


@pytest.mark.parametrize(
    ("raw", "hosts"),
    [
        ("auto", ("auto",)),
        ("*", ("*",)),
        ("Streams.Example, 192.0.2.1", ("streams.example", "192.0.2.1")),
        ("[2001:DB8:0::1]", ("2001:db8::1",)),
        (["a.example"], ("a.example",)),
    ],
)
def test_allowed_hosts_are_names_and_addresses(raw: object, hosts: tuple[str, ...]) -> None:
    assert Server(allowed_hosts=raw).allowed_hosts == hosts  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "raw", ["", [], "*,a.example", "auto,a.example", "https://a.example", "a.example:80", "a b", 1]
)
def test_other_allowed_hosts_are_refused(raw: object) -> None:
    assert refused("server.allowed_hosts", raw)


def test_a_section_cannot_be_made_with_a_value_that_is_not_allowed() -> None:
    with pytest.raises(ConfigError, match=r"server\.port = 70000 is not allowed"):
        Server(port=70_000)


@pytest.mark.parametrize("half", ["cert_path", "key_path"])
def test_a_certificate_without_its_key_cannot_be_made(half: str) -> None:
    with pytest.raises(ConfigError, match="set both or neither"):
        Tls(**{half: Path("x.pem")})


def test_the_largest_body_allowed_fits_the_budget_for_bodies() -> None:
    with pytest.raises(ConfigError, match=r"at least limits\.max_body_bytes"):
        Limits(max_body_bytes=1001, max_inflight_body_bytes=1000)


def test_config_errors_are_value_errors() -> None:
    assert issubclass(ConfigError, ValueError)


@pytest.mark.parametrize(
    "toml",
    ['default_ttl_secs = ["chat/=60", "*=7"]', 'default_ttl_secs = { "chat/" = 60, "*" = 7 }'],
)
def test_defaults_by_prefix_are_a_list_or_a_table(tmp_path: Path, toml: str) -> None:
    defaults = load_toml(tmp_path, f"[streams]\n{toml}\n").config.streams.creation_defaults
    assert defaults.ttl_secs == {"chat/": 60, "*": 7}


@pytest.mark.parametrize("raw", ["60", "=60", "chat/=", "chat/=soon", "chat/=-1", {"chat/": "x"}])
def test_a_default_ttl_without_prefix_or_seconds_is_refused(raw: object) -> None:
    assert refused("streams.default_ttl_secs", raw)


@pytest.mark.parametrize("raw", ["chat/=json", "text/plain", "chat/="])
def test_a_default_content_type_is_a_media_type(raw: object) -> None:
    assert refused("streams.default_content_type", raw)
