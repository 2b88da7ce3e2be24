"""Where the streams that a query writes to ended after its last batch, as the driver noted it.

A server may come back without its last messages: in memory mode after a restart, from a backup, or
because somebody deleted a stream. It then takes the next batch, whose number is higher than all it
knows, and the stream has a hole. So each task compares what it is about to extend with the note.
The streams written last are kept, as many as every task can be given.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.client.range_reads import Tail
from headrace.spark.driver_notes import DriverNote
from headrace.spark.streams.offset_tracker import GONE, StreamProblem
from headrace.spark.streams.plan import StreamTail, is_another

logger = logging.getLogger(__name__)
STREAMS_KEPT: Final = 10_000  # about 1 MB of JSON, which every task of a batch gets


@dataclass(frozen=True)
class Targets:
    """What was noted: `streams` in the order in which they were last written to.

    Without `fails`, a loss is only logged: where messages expire by design, streams come anew.
    """

    note: str = ""
    streams: Mapping[str, StreamTail] = field(default_factory=dict)
    fails: bool = True

    def check(self, tail: Tail) -> None:
        """Refuse to go on over a hole."""
        noted = self.streams.get(tail.stream)
        if noted is None:
            return
        if tail.problem in GONE:
            lost = "is not there any more"
        elif tail.problem is not None:
            return  # the append says what is wrong
        elif is_another(tail.created_at_ms, noted.created_at_ms):
            lost = "was deleted and created again"
        elif tail.next_offset < noted.offset:
            lost = f"ends at {tail.next_offset}"
        else:
            return
        what = (
            f"{tail.stream}: this query has written to it up to {noted.offset}, and now it {lost}"
        )
        if not self.fails:
            logger.warning("%s. Continuing, as failOnDataLoss is false.", what)
            return
        raise StreamProblem(
            f"{what}. The server has lost messages, as in a restart in memory mode or a restore, "
            "or the stream was deleted or has expired. Nothing more is written. To write "
            "everything again: delete the stream and start with another checkpoint and another "
            "producerId (in a pipeline, with another --state and producer). To go on without what "
            f"is lost: delete {self.note}. To go on always, as where streams expire by design: set "
            "failOnDataLoss to false (in a pipeline, fail_on_data_loss)."
        )


@dataclass(frozen=True)
class TargetNote:
    note: DriverNote
    fails: bool = True

    def read(self) -> Targets:
        found = self.note.read() or {"streams": []}
        streams = {name: StreamTail(*tail) for name, *tail in found["streams"]}
        return Targets(str(self.note.path.absolute()), streams, self.fails)

    def add(self, written: Iterable[Mapping[str, StreamTail]]) -> None:
        """Take in what the tasks of one batch have written."""
        fresh: dict[str, StreamTail] = {}
        for streams in written:
            for name, tail in streams.items():
                other = fresh.setdefault(name, tail)
                if is_another(tail.created_at_ms, other.created_at_ms):
                    raise StreamProblem(
                        f"{name}: the stream was deleted and created again while this batch was "
                        "written. Start again: the batch is then written as a whole."
                    )
                fresh[name] = max(tail, other, key=lambda each: each.offset)
        if not fresh:
            return
        kept = dict(self.read().streams)
        for name, tail in fresh.items():
            known = kept.pop(name, tail)
            is_new = is_another(tail.created_at_ms, known.created_at_ms)
            # A repeat of an older batch ends where that one ended.
            kept[name] = tail if is_new else max(tail, known, key=lambda each: each.offset)
        latest = list(kept.items())[-STREAMS_KEPT:]
        self.note.write({"streams": [[name, *tail] for name, tail in latest]})
