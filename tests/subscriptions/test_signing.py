"""Signatures and tokens: ours verify, and nothing else does."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest
from cryptography.exceptions import InvalidSignature
from hypothesis import given
from hypothesis import strategies as st

from headrace.subscriptions.errors import Code, SubscriptionRefused
from headrace.subscriptions.signing import TOKEN_TTL_SECS, CallbackTokens, SigningKey
from tests.subscriptions.receiver import verify_signature

NOW_MS = 1_800_000_000_123
KEY = SigningKey.generate()
TOKENS = CallbackTokens(b"k" * 32)


@given(body=st.binary(max_size=1000))
def test_a_receiver_with_only_the_jwks_can_verify_a_webhook(body: bytes) -> None:
    assert verify_signature(body, KEY.signature(body, NOW_MS), KEY.jwks) == NOW_MS // 1000


def test_a_signature_covers_the_body_and_its_time() -> None:
    header = KEY.signature(b"body", NOW_MS)
    for body, changed in (
        (b"Body", header),
        (b"body", header.replace("t=1800000000", "t=1800000001")),
    ):
        with pytest.raises(InvalidSignature):
            verify_signature(body, changed, KEY.jwks)


def test_the_kid_is_the_thumbprint_of_the_key() -> None:
    (jwk,) = KEY.jwks["keys"]
    followers = f'{{"crv":"Ed25519","kty":"OKP","x":"{jwk["x"]}"}}'
    digest = hashlib.sha256(followers.encode()).digest()
    assert jwk["kid"] == KEY.kid == "ds_" + base64.urlsafe_b64encode(digest).decode().rstrip("=")
    assert (jwk["use"], jwk["alg"]) == ("sig", "EdDSA")
    assert "d" not in jwk


def test_each_key_has_its_own_kid() -> None:
    assert SigningKey.generate().kid != KEY.kid


@given(id=st.text(min_size=1), generation=st.integers(1, 2**53 - 1))
def test_a_token_gives_back_its_generation(id: str, generation: int) -> None:
    token = TOKENS.issue(id, generation, NOW_MS)
    assert TOKENS.generation(token, id, NOW_MS) == generation


def test_a_token_is_a_jwt() -> None:
    header, claims, _ = TOKENS.issue("sub-1", 7, NOW_MS).split(".")
    assert json.loads(_decode(header)) == {"alg": "HS256", "typ": "JWT"}
    assert json.loads(_decode(claims)) == {
        "sub": "sub-1",
        "generation": 7,
        "exp": NOW_MS // 1000 + TOKEN_TTL_SECS,
    }


def test_a_token_expires() -> None:
    token = TOKENS.issue("sub-1", 1, NOW_MS)
    last_ms = (NOW_MS // 1000 + TOKEN_TTL_SECS) * 1000 - 1
    assert TOKENS.generation(token, "sub-1", last_ms) == 1
    assert refusal(token, now_ms=last_ms + 1) is Code.TOKEN_EXPIRED


def test_a_token_is_for_one_subscription() -> None:
    assert refusal(TOKENS.issue("sub-2", 1, NOW_MS)) is Code.TOKEN_INVALID


def test_a_token_of_another_server_is_refused() -> None:
    assert refusal(CallbackTokens(b"x" * 32).issue("sub-1", 1, NOW_MS)) is Code.TOKEN_INVALID


@given(position=st.integers(0, 200), character=st.characters())
def test_a_token_that_was_tampered_with_is_refused(position: int, character: str) -> None:
    token = TOKENS.issue("sub-1", 1, NOW_MS)
    position %= len(token)
    changed = token[:position] + character + token[position + 1 :]
    if changed != token:
        assert refusal(changed) is Code.TOKEN_INVALID


@given(token=st.text())
def test_garbage_is_refused(token: str) -> None:
    assert refusal(token) is Code.TOKEN_INVALID


def refusal(token: str, now_ms: int = NOW_MS) -> Code:
    with pytest.raises(SubscriptionRefused) as caught:
        TOKENS.generation(token, "sub-1", now_ms)
    return caught.value.code


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
