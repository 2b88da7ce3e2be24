"""A server that takes every claim of a producer for a new one: a race must find it out."""

from __future__ import annotations

from headrace.protocol import producers

producers.judge = lambda known, claim, producers_max: None
