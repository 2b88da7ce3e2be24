"""What the registry says of a stream."""

from __future__ import annotations

import json

from headrace.protocol.registry import announce_created, announce_deleted
from headrace.testing.virtual_clock import START_MS
from tests.protocol.states import new_state


def test_a_created_stream_is_an_insert_of_its_path_type_and_time() -> None:
    assert json.loads(announce_created(new_state("text/plain; x=y"))) == {
        "type": "stream",
        "key": "a/b",
        "value": {"path": "a/b", "contentType": "text/plain; x=y", "createdAt": START_MS},
        "headers": {"operation": "insert"},
    }


def test_a_deleted_stream_is_a_delete_of_its_path() -> None:
    assert json.loads(announce_deleted("a/é")) == {
        "type": "stream",
        "key": "a/é",
        "headers": {"operation": "delete"},
    }
