"""What to do about an append that a server refuses for good, in words of a pipeline's operator."""

from __future__ import annotations

from headrace.errors import HeadraceError, ProducerFenced, StreamFull, TooManyProducers

_FULL = (
    "Raise limits.max_stream_bytes where the server runs (DS_LIMITS__MAX_STREAM_BYTES in its "
    "environment; 0 means no limit), or keep keyed changes in a bucket "
    '(postgres-to-stream does with format = "changes") and run compact, which gives history back.'
)
_PRODUCERS = (
    "Batch writes that follow one another, as in foreachBatch, must name themselves with the "
    "options producerId and batch: then they are one producer. To go on with this stream, raise "
    "limits.max_producers_per_stream where the server runs "
    "(DS_LIMITS__MAX_PRODUCERS_PER_STREAM in its environment)."
)


def refusal(stream: str, error: HeadraceError) -> str:
    """The sentence of a refused append, with what to set where that is known."""
    if isinstance(error, ProducerFenced):
        return _fenced(stream, error)
    advice = ""
    if isinstance(error, StreamFull):
        advice = f" {_FULL}"
    elif isinstance(error, TooManyProducers):
        advice = f" {_PRODUCERS}"
    return f"{stream}: {error}{advice}"


def _fenced(stream: str, error: ProducerFenced) -> str:
    """An epoch is a batch here, and nobody can claim a higher one."""
    return (
        f"{stream}: batch {error.received_epoch} comes late: the same producer has written batch "
        f"{error.current_epoch}. If another query is running under its name, give this one a name "
        "of its own: set producerId (in a pipeline, producer). If the checkpoint is lost or an old "
        "copy, bring back the newest one; or decide about what was written, such as to delete the "
        "stream, and then set producerId, in a pipeline producer, to a new name."
    )
