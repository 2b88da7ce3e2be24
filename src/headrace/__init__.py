"""Headrace: append-only streams over HTTP (the Durable Streams protocol)."""

__version__ = "0.1.0"
