"""Files in which the driver of a query notes what its sink has committed.

A sink that comes back without its last commits has nothing in itself that shows the loss: only the
driver knows that there was more. The note is a file of its own in the checkpoint, or where the
option `committed` says, written before Spark records the batch. It must outlast a power cut, since
an empty one would switch the check off.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from headrace.spark.local_paths import PlaceError
from headrace.spark.options import OptionError, Options
from headrace.spark.places import Place, place_of, write_whole

OPTION: Final = "committed"
STREAMS_FILE: Final = "streams.json"  # of the streams that a query writes to
_CHECKPOINT: Final = "checkpointLocation"
_NONE: Final = "none"


class NoteError(RuntimeError):
    """A note that cannot be read, or that the sink contradicts; the message says what to do."""


@dataclass(frozen=True)
class DriverNote:
    """One JSON object in a file."""

    path: Place

    @property
    def checkpoint(self) -> Place:
        return self.path.absolute().parent

    def read(self) -> dict[str, Any] | None:
        """None before the first commit."""
        try:
            found = json.loads(self.path.read_text("utf-8"))
        except FileNotFoundError:
            return None
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise NoteError(
                f"{self.path.absolute()}, where this query notes what its sink has committed, is "
                "damaged. Make sure that the sink has lost nothing, then delete that file."
            )
        return found

    def write(self, value: dict[str, Any]) -> None:
        write_whole(self.path, json.dumps(value), durable=True)


def query_note(options: Options, name: str) -> DriverNote | None:
    """The note of a streaming query: `name` in its checkpoint, unless `committed` says otherwise.

    A checkpoint that is neither in a directory of this machine nor on S3 needs the option: without
    a note a sink that has lost commits would be written to as if it had not.
    """
    if options.text(OPTION):
        return given_note(options)
    checkpoint = options.text(_CHECKPOINT)
    try:
        if checkpoint:
            return DriverNote(place_of(_CHECKPOINT, checkpoint) / name)
    except PlaceError:
        pass
    where = f"the checkpoint is at {checkpoint}" if checkpoint else f"{_CHECKPOINT} is not given"
    raise OptionError(
        f"The driver notes what it has committed in a file, and {where}. Set the option {OPTION} "
        f"to a path on the driver's disk that a restart finds again, or on S3, or to {_NONE}: then "
        "a sink that lost commits, as in a restore, goes unnoticed."
    )


def given_note(options: Options) -> DriverNote | None:
    """The note that the option `committed` names, as a batch write needs it."""
    place = options.text(OPTION)
    return DriverNote(place_of(OPTION, place)) if place not in ("", _NONE) else None
