"""What a defect of ours becomes: one logged traceback, and one error to answer with.

A callback that raises must not take its neighbours down: those behind it in the same batch of
commits, the same list of readers, the same queue of deadlines. Each place that calls back for
several clients catches what one callback raises and hands the fault to that one alone.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import Any, Protocol

from headrace.errors import HeadraceError, InternalFault

logger = logging.getLogger(__name__)


class Faultable(Protocol):
    """Someone who is called back and can be told that this failed."""

    def on_fault(self, fault: HeadraceError) -> None:
        """A callback of yours raised: give up, and answer with `fault` whoever waits for you."""
        ...


def internal_fault(what: str) -> InternalFault:
    """The exception being handled, logged under a reference that the client is given, too."""
    reference = secrets.token_hex(8)
    logger.exception("%s failed", what, extra={"reference": reference})
    return InternalFault(reference)


def tell(reply: Callable[[Any], None], outcome: object) -> None:
    """Call back with `outcome`. A reply that raises is called once more, with the fault."""
    try:
        reply(outcome)
    except Exception:
        hand_over(reply, internal_fault("an answer"))


def hand_over(reply: Callable[[Any], None], fault: HeadraceError) -> None:
    """The last resort: what raises even here has nobody left to be told."""
    try:
        reply(fault)
    except Exception:
        logger.exception("answering an internal error failed")
