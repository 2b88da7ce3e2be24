"""The documentation and the sample files say what the code does."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from headrace.config import SETTINGS, Config, Setting, as_text, load
from tests.config.helpers import load_toml

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs/configuration.md").read_text()
SAMPLE = (ROOT / "config/default.toml").read_text()
UNCOMMENTED = re.sub(r"(?m)^#(?=\w+ = )", "", SAMPLE)


def row(setting: Setting) -> str:
    default = as_text(setting.default)
    shown = f"`{default}`" if default else "unset"
    return f"| `{setting.key}` | `{setting.env}` | {shown} | {setting.help} |"


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.key)
def test_a_setting_has_its_row_in_the_documentation(setting: Setting) -> None:
    assert row(setting) in DOCS.splitlines()


def test_the_documentation_has_no_row_for_a_setting_that_does_not_exist() -> None:
    documented = re.findall(r"^\| `(\w+\.\w+)` \| `DS_", DOCS, re.MULTILINE)
    assert documented == [setting.key for setting in SETTINGS]


def test_the_default_sample_changes_nothing() -> None:
    assert not any(tomllib.loads(SAMPLE).values())


def test_the_default_sample_names_every_setting() -> None:
    tables = tomllib.loads(UNCOMMENTED)
    named = [f"{section}.{name}" for section, body in tables.items() for name in body]
    assert named == [setting.key for setting in SETTINGS]


def test_the_default_sample_states_the_defaults(tmp_path: Path) -> None:
    assert load_toml(tmp_path, UNCOMMENTED).config == Config()


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.key)
def test_the_default_sample_explains_every_setting(setting: Setting) -> None:
    assert setting.help in re.sub(r"\n# ", " ", SAMPLE)


def test_the_dev_profile_is_quick_and_talkative() -> None:
    config = load("dev", environ={}, cwd=ROOT).config
    assert config.server.long_poll_timeout_secs == 2
    assert config.server.sse_reconnect_interval_secs == 5
    assert (config.log.rust_log, config.log.access) == ("debug", True)


def test_the_prod_profile_restricts_origins_and_trusts_the_proxy_beside_it() -> None:
    config = load("prod", environ={}, cwd=ROOT).config
    assert config.http.cors_origins == ("https://app.example.com",)
    assert config.server.trusted_proxies == ("loopback",)
    assert config.log.format == "json"
