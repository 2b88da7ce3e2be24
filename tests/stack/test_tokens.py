"""Test tokens: one key pair per state directory, and tokens that are what they say."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwk, jwt

from headrace.stack.tokens import AUDIENCE, ISSUER, TokenKeys, TokenKind


def claims(keys: TokenKeys, token: str) -> dict[str, Any]:
    public = jwk.KeySet.import_key_set(json.loads(keys.jwks_file.read_text()))
    return dict(jwt.decode(token, public).claims)


def test_a_token_verifies_with_the_published_key(tmp_path: Path) -> None:
    keys = TokenKeys(tmp_path)
    found = claims(keys, keys.mint(subject="alice", lifetime_secs=60, now=1000))
    expected = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "iat": 1000, "exp": 1060}
    assert found == expected


def test_an_expired_token_expired_an_hour_ago(tmp_path: Path) -> None:
    keys = TokenKeys(tmp_path)
    assert claims(keys, keys.mint(TokenKind.EXPIRED, now=10_000))["exp"] == 6400


def test_the_private_key_is_for_its_owner_only_and_is_not_published(tmp_path: Path) -> None:
    keys = TokenKeys(tmp_path)
    keys.ensure()
    assert stat.S_IMODE(keys.private_file.stat().st_mode) == 0o600
    published = json.loads(keys.jwks_file.read_text())["keys"][0]
    assert set(published) == {"kty", "n", "e", "kid", "use", "alg"}


@pytest.mark.slow
def test_processes_that_start_at_once_share_one_pair(tmp_path: Path) -> None:
    keys = TokenKeys(tmp_path)
    with ThreadPoolExecutor(4) as pool:
        commands = [[sys.executable, "-m", "headrace.cli", "token", "--state", str(tmp_path)]] * 3
        run = pool.map(
            lambda command: subprocess.run(command, capture_output=True, text=True, check=True),
            commands,
        )
        tokens = [done.stdout.strip() for done in run]
    assert all(claims(keys, token)["sub"] == "test-user" for token in tokens)


def test_two_faults_in_one_token_are_refused_in_a_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace.cli", "token", "--expired", "--forged"]
    done = subprocess.run(
        [*command, "--state", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "--expired and --forged exclude each other" in done.stderr
