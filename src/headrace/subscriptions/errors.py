"""What the subscription interface refuses: upstream's codes, and the one table of their statuses.

The codes are part of the protocol's wire format; the last five are ours, for cases that
upstream leaves open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from headrace.errors import Refused, Unavailable


class Code(StrEnum):
    INVALID_REQUEST = "INVALID_REQUEST"
    WEBHOOK_URL_REJECTED = "WEBHOOK_URL_REJECTED"
    TOKEN_INVALID = "TOKEN_INVALID"
    TOKEN_EXPIRED = "TOKEN_EXPIRED"
    SUBSCRIPTION_NOT_FOUND = "SUBSCRIPTION_NOT_FOUND"
    SUBSCRIPTION_ALREADY_EXISTS = "SUBSCRIPTION_ALREADY_EXISTS"
    FENCED = "FENCED"
    ALREADY_CLAIMED = "ALREADY_CLAIMED"
    NO_PENDING_WORK = "NO_PENDING_WORK"
    INVALID_OFFSET = "INVALID_OFFSET"
    ROUTE_NOT_FOUND = "ROUTE_NOT_FOUND"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    BODY_TOO_LARGE = "BODY_TOO_LARGE"
    LIMIT_REACHED = "LIMIT_REACHED"
    SUBSCRIPTION_SET_ASIDE = "SUBSCRIPTION_SET_ASIDE"


class Problem(NamedTuple):
    status: int
    title: str


PROBLEMS: Final[Mapping[Code, Problem]] = {
    Code.INVALID_REQUEST: Problem(400, "Invalid request"),
    Code.WEBHOOK_URL_REJECTED: Problem(400, "Webhook URL rejected"),
    Code.TOKEN_INVALID: Problem(401, "Token invalid"),
    Code.TOKEN_EXPIRED: Problem(401, "Token expired"),
    Code.SUBSCRIPTION_NOT_FOUND: Problem(404, "Subscription not found"),
    Code.ROUTE_NOT_FOUND: Problem(404, "Not found"),
    Code.METHOD_NOT_ALLOWED: Problem(405, "Method not allowed"),
    Code.SUBSCRIPTION_ALREADY_EXISTS: Problem(409, "Subscription exists"),
    Code.FENCED: Problem(409, "Wake is over"),
    Code.ALREADY_CLAIMED: Problem(409, "Already claimed"),
    Code.NO_PENDING_WORK: Problem(409, "No pending work"),
    Code.INVALID_OFFSET: Problem(409, "Invalid offset"),
    Code.BODY_TOO_LARGE: Problem(413, "Body too large"),
    Code.SUBSCRIPTION_SET_ASIDE: Problem(500, "Subscription set aside"),
    Code.LIMIT_REACHED: Problem(503, "Limit reached"),
}


def problem_name(code: Code) -> str:
    """The last part of the problem's type."""
    return f"subscription-{code.lower().removeprefix('subscription_').replace('_', '-')}"


@dataclass(eq=False)
class SubscriptionRefused(Refused):
    """It did not happen, and the same request will not help."""

    code: Code
    reason: str
    current_holder: str | None = None
    generation: int | None = None
    allow: str | None = None

    @property
    def detail(self) -> str:
        return self.reason


@dataclass(eq=False)
class SubscriptionsFull(Unavailable):
    """A bound of the whole server is reached; it did not happen."""

    what: str
    limit: int
    retry_after_secs: int = 10

    @property
    def code(self) -> Code:
        return Code.LIMIT_REACHED

    @property
    def detail(self) -> str:
        return f"The server is at its limit of {self.limit} {self.what}. Delete some first."


def invalid(reason: str) -> SubscriptionRefused:
    return SubscriptionRefused(Code.INVALID_REQUEST, reason)


def not_found(subscription_id: str) -> SubscriptionRefused:
    return SubscriptionRefused(
        Code.SUBSCRIPTION_NOT_FOUND,
        f"There is no subscription {subscription_id!r}. Create it with PUT first.",
    )


def set_aside(subscription_id: str, reason: str) -> SubscriptionRefused:
    return SubscriptionRefused(
        Code.SUBSCRIPTION_SET_ASIDE,
        f"What is stored of the subscription {subscription_id!r} could not be read when the server "
        f"started, and it is set aside: {reason} Restore a backup, or delete it and create it "
        "again.",
    )
