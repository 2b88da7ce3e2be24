"""Test tokens: keys made on first use, the JWKS that Envoy verifies with, and tokens of all kinds.

The keys live in the state directory and nowhere else. They are worth nothing outside this stack.
"""

from __future__ import annotations

import json
import os
import time
from enum import StrEnum
from pathlib import Path

from joserfc import jwk, jwt

ISSUER = "durable-streams-test"
AUDIENCE = "durable-streams"
SUBJECT = "test-user"
LIFETIME_SECS = 3600
KEY_BITS = 2048


class TokenKind(StrEnum):
    """What is wrong with a token, if anything."""

    VALID = "valid"
    EXPIRED = "expired"
    WRONG_ISSUER = "wrong-issuer"
    WRONG_AUDIENCE = "wrong-audience"
    FORGED = "forged"


class TokenKeys:
    """The key pair of one state directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "keys"

    @property
    def private_file(self) -> Path:
        return self._directory / "private.json"

    @property
    def jwks_file(self) -> Path:
        return self._directory / "jwks.json"

    def jwks(self) -> str:
        """The public half, for verifiers of tokens."""
        self.ensure()
        return self.jwks_file.read_text("utf-8")

    def ensure(self) -> None:
        """Make the pair if there is none; two processes that try at once end up with one."""
        if self.private_file.exists() and self.jwks_file.exists():
            return
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = _new_key()
        self._publish(self.private_file, key.as_dict(private=True))
        key = self._key()
        public = {"keys": [{**key.as_dict(private=False), "use": "sig", "alg": "RS256"}]}
        self._publish(self.jwks_file, public)

    def _publish(self, path: Path, document: object) -> None:
        """Complete or absent, and never over another's."""
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(document, file)
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        finally:
            temporary.unlink()

    def _key(self) -> jwk.RSAKey:
        return jwk.RSAKey.import_key(json.loads(self.private_file.read_text("utf-8")))

    def mint(
        self,
        kind: TokenKind = TokenKind.VALID,
        subject: str = SUBJECT,
        lifetime_secs: int = LIFETIME_SECS,
        now: float | None = None,
    ) -> str:
        """A signed token of the given kind."""
        self.ensure()
        issued = int(time.time() if now is None else now)
        if kind is TokenKind.EXPIRED:
            issued -= 2 * LIFETIME_SECS
            lifetime_secs = LIFETIME_SECS
        key = self._key()
        claims = {
            "iss": "somebody-else" if kind is TokenKind.WRONG_ISSUER else ISSUER,
            "aud": "something-else" if kind is TokenKind.WRONG_AUDIENCE else AUDIENCE,
            "sub": subject,
            "iat": issued,
            "exp": issued + lifetime_secs,
        }
        # Forged: it claims our key's name and is signed with another.
        signer = _new_key() if kind is TokenKind.FORGED else key
        return jwt.encode({"alg": "RS256", "kid": key.kid}, claims, signer)


def _new_key() -> jwk.RSAKey:
    return jwk.RSAKey.generate_key(KEY_BITS, auto_kid=True)
