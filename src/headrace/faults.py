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
    """A callback that can also take a failure."""

    def on_fault(self, fault: HeadraceError) -> None:
        """One of your callbacks raised: give up, and answer your client with `fault`."""
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
    """The last resort: an exception here can only be logged."""
    try:
        reply(fault)
    except Exception:
        logger.exception("answering an internal error failed")
