"""Trims that clients ask for: a stream gives up its beginning.

The trim offset moves by a change of its own, which readers see once it is durable, together with
the answer. What forks and held positions still need stays stored (`reclaim`). A stream with a
snapshot is trimmed by publishing a newer one: the messages after its snapshot are all there is of
what came since.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.engine.internal_append import trim
from headrace.engine.reads import Reads
from headrace.engine.stream_runtime import Stream
from headrace.errors import HeadraceError, InvalidOffset, StreamDeleted
from headrace.protocol.offsets import Position
from headrace.protocol.trims import Trim, decide_trim, excess_messages
from headrace.storage.base import Change, Storage

TrimReply = Callable[[Position | HeadraceError], None]


class Trims:
    def __init__(self, reads: Reads, storage: Storage) -> None:
        self._reads = reads
        self._storage = storage

    def trim(self, stream: Stream, command: Trim, reply: TrimReply) -> None:
        """Answers with where the stream begins, which may be later than was asked for."""
        state = stream.state
        if command.keep_messages is not None:
            excess = excess_messages(state, command.keep_messages)
            beginning = state.trim_offset
        else:
            excess = 0
            beginning = state.tail if command.before is None else command.before
        refusal = decide_trim(state, beginning)
        if refusal is not None:
            self._refuse(stream, refusal, reply)
        elif excess:
            self._reads.seek(stream, beginning, excess, self._found(stream, None, reply))
        elif beginning > state.trim_offset:
            # Where one message after it can be counted, an offset is on a boundary.
            self._reads.seek(stream, beginning, 1, self._found(stream, beginning, reply))
        else:
            self._trim(stream, beginning, reply)

    def _found(
        self, stream: Stream, asked: Position | None, reply: TrimReply
    ) -> Callable[[Position | HeadraceError | None], None]:
        def found(reached: Position | HeadraceError | None) -> None:
            if reached is None:
                where = f"The offset {asked} is not a boundary of this stream's messages."
                self._refuse(stream, InvalidOffset(where), reply)
            elif isinstance(reached, HeadraceError):
                self._refuse(stream, reached, reply)
            else:
                self._trim(stream, reached if asked is None else asked, reply)

        return found

    def _trim(self, stream: Stream, beginning: Position, reply: TrimReply) -> None:
        """Decided again: a seek may have taken a while."""
        state = stream.state
        refusal = StreamDeleted(state.name) if state.deleted else decide_trim(state, beginning)
        if refusal is not None:
            self._refuse(stream, refusal, reply)
        elif beginning <= state.trim_offset:
            floor = state.trim_offset
            self._storage.when_durable(stream.log, lambda: reply(floor), reply)
        elif self._storage.removal_refusal is not None:
            reply(self._storage.removal_refusal)
        else:
            trim(stream, beginning, self._storage, _told(beginning, reply))

    def _refuse(self, stream: Stream, refusal: HeadraceError, reply: TrimReply) -> None:
        """Once what it rests on is durable: the end of the stream, or a trim before this one."""
        self._storage.when_durable(stream.log, lambda: reply(refusal), reply)


def _told(beginning: Position, reply: TrimReply) -> Callable[[Change | HeadraceError], None]:
    return lambda outcome: reply(outcome if isinstance(outcome, HeadraceError) else beginning)
