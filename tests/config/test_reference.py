"""Every variable of the reference server's documentation works here, with the same default.

But for one: there every page of the web may read and write unless told otherwise, here none may.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config import BY_ENV, Config
from tests.config.helpers import load_env, write

# variable, key, documented default, another value, what that becomes
REFERENCE = [
    ("DS_SERVER__PORT", "server.port", 4437, "8080", 8080),
    ("DS_HTTP__CORS_ORIGINS", "http.cors_origins", (),
     "https://app.example.com,https://admin.example.com",
     ("https://app.example.com", "https://admin.example.com")),
    ("RUST_LOG", "log.rust_log", "info", "durable_streams=debug", "durable_streams=debug"),
    ("DS_LOG__RUST_LOG", "log.rust_log", "info", "warn", "warn"),
    ("DS_SERVER__LONG_POLL_TIMEOUT_SECS", "server.long_poll_timeout_secs", 30, "2", 2),
    ("DS_SERVER__SSE_RECONNECT_INTERVAL_SECS", "server.sse_reconnect_interval_secs", 60, "0", 0),
    ("DS_LIMITS__MAX_MEMORY_BYTES", "limits.max_memory_bytes", 104_857_600, "1024", 1024),
    ("DS_LIMITS__MAX_STREAM_BYTES", "limits.max_stream_bytes", 10_485_760, "512", 512),
    ("DS_STORAGE__MODE", "storage.mode", "memory", "redb", "acid"),
    ("DS_STORAGE__DATA_DIR", "storage.data_dir", Path("./data/streams"), "/srv/s", Path("/srv/s")),
    ("DS_STORAGE__ACID_SHARD_COUNT", "storage.acid_shard_count", 16, "32", 32),
]  # fmt: skip


@pytest.mark.parametrize(("env", "key", "default", "raw", "value"), REFERENCE)
def test_a_documented_variable_sets_its_value(
    tmp_path: Path, env: str, key: str, default: object, raw: str, value: object
) -> None:
    loaded = load_env(tmp_path, **{env: raw})
    assert loaded.config.value(key) == value
    assert loaded.sources[key] == env


@pytest.mark.parametrize(("env", "key", "default", "raw", "value"), REFERENCE)
def test_a_documented_default_is_ours(
    env: str, key: str, default: object, raw: str, value: object
) -> None:
    assert Config().in_force(key) == default


def test_the_two_tls_variables_set_both_paths(tmp_path: Path) -> None:
    for name in ("server.crt", "server.key"):
        write(tmp_path, name, "")
    paths = {"CERT": tmp_path / "server.crt", "KEY": tmp_path / "server.key"}
    loaded = load_env(tmp_path, **{f"DS_TLS__{k}_PATH": str(path) for k, path in paths.items()})
    assert loaded.config.tls.cert_path == paths["CERT"]
    assert loaded.config.tls.key_path == paths["KEY"]


def test_tls_is_off_by_default() -> None:
    assert Config().tls.cert_path is None


def test_every_setting_has_a_variable_of_its_own_name() -> None:
    assert all(name == f"DS_{s.section.upper()}__{s.name.upper()}" for name, s in BY_ENV.items())
