"""Signatures: what a receiver checks a webhook by, and what we check an answer by.

Webhooks are signed with an Ed25519 key whose public half anyone may fetch as a JWK Set. Tokens are
HS256 JWTs that only this server makes and reads; they name a subscription and one generation.
Both keys are kept with the subscriptions, so a signature and a token outlive the process.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, Final

import orjson
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from headrace.subscriptions.errors import Code, SubscriptionRefused

# An answer may extend its lease for hours under the token it began with. A stale token does no
# harm, because the generation fences it.
TOKEN_TTL_SECS: Final = 24 * 3600
TOKEN_KEY_BYTES: Final = 32  # RFC 7518: at least the size of the hash
_TOKEN_HEADER: Final = b'{"alg":"HS256","typ":"JWT"}'


def new_token_key() -> bytes:
    return secrets.token_bytes(TOKEN_KEY_BYTES)


def _base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


class SigningKey:
    """The key that signs webhooks."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        public = {
            "crv": "Ed25519",
            "kty": "OKP",
            "x": _base64url(private.public_key().public_bytes_raw()),
        }
        # RFC 7638: the hash of these three members, in this order and without white space.
        self.kid = "ds_" + _base64url(hashlib.sha256(orjson.dumps(public)).digest())
        self.jwks: dict[str, Any] = {
            "keys": [public | {"kid": self.kid, "use": "sig", "alg": "EdDSA"}]
        }

    @classmethod
    def generate(cls) -> SigningKey:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, secret: bytes) -> SigningKey:
        return cls(Ed25519PrivateKey.from_private_bytes(secret))

    @property
    def secret(self) -> bytes:
        """What `load` makes the same key of."""
        return self._private.private_bytes_raw()

    def signature(self, body: bytes, now_ms: int) -> str:
        """The Webhook-Signature of a body that is sent now."""
        timestamp = now_ms // 1000
        signed = self._private.sign(b"%d.%b" % (timestamp, body))
        return f"t={timestamp},kid={self.kid},ed25519={_base64url(signed)}"


class CallbackTokens:
    """Tokens that let their bearer answer for one generation of one subscription."""

    def __init__(self, key: bytes) -> None:
        assert len(key) >= TOKEN_KEY_BYTES, "the key must be as long as the hash"
        self._key = key
        self._header = _base64url(_TOKEN_HEADER)

    def issue(self, subscription_id: str, generation: int, now_ms: int) -> str:
        claims = {
            "sub": subscription_id,
            "generation": generation,
            "exp": now_ms // 1000 + TOKEN_TTL_SECS,
        }
        signed = f"{self._header}.{_base64url(orjson.dumps(claims))}"
        return f"{signed}.{self._mac(signed)}"

    def generation(self, token: str, subscription_id: str, now_ms: int) -> int:
        """The generation a token was issued for; raises TOKEN_INVALID or TOKEN_EXPIRED."""
        signed, _, mac = token.rpartition(".")
        if not token.isascii() or not hmac.compare_digest(mac, self._mac(signed)):
            raise _invalid_token()
        # Signed, so it is one of ours: it needs no further checks of its form.
        payload = signed.partition(".")[2]
        claims = orjson.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        if claims["sub"] != subscription_id:
            raise _invalid_token()
        if now_ms // 1000 >= claims["exp"]:
            raise SubscriptionRefused(Code.TOKEN_EXPIRED, "The token has expired.")
        generation: int = claims["generation"]
        return generation

    def _mac(self, signed: str) -> str:
        return _base64url(hmac.digest(self._key, signed.encode("ascii"), "sha256"))


def _invalid_token() -> SubscriptionRefused:
    return SubscriptionRefused(
        Code.TOKEN_INVALID, "The bearer token is not one this server gave for this subscription."
    )
