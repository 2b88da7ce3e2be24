"""Publishes a pipeline's progress to a stream of its server.

All pipelines of a server share one stream of State Protocol changes, so that a reader of it
knows them all. A thread of its own appends to it: an unreachable server delays no pipeline, and
what was not said then is said with the next word.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import asdict
from types import TracebackType
from typing import Any

from headrace.client import Client
from headrace.client.settings import Retry, Timeouts
from headrace.client.state import STATE_MEDIA_TYPE
from headrace.errors import BucketExists, HeadraceError
from headrace.spark.pipelines.progress import Progress

TYPE = "pipeline"
EVERY_SECS = 5.0
ANSWER_SECS = 5.0
CLOSE_SECS = 6.0  # for the last report; a stop waits 30 s for the pipeline
KEPT_MESSAGES = 500  # of each pipeline: 40 minutes; then a snapshot replaces them
logger = logging.getLogger(__name__)


class Publisher:
    """Publishes `progress` at once, every few seconds and when it is closed.

    `place` is the stream, `/bucket/stream`; bucket and stream are made if they are not there.
    """

    def __init__(self, server: str, token: str, place: str, progress: Progress) -> None:
        self._client = Client(
            server,
            token=token or None,
            retry=Retry(retries_max=0),
            timeouts=Timeouts(connect_secs=ANSWER_SECS, answer_secs=ANSWER_SECS),
        )
        self._place = place
        self._stream = self._client.stream(place, content_type="application/json")
        self._progress = progress
        self._is_there = False
        self._is_failing = False
        self._said = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> Publisher:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join(CLOSE_SECS)

    def _run(self) -> None:
        ended = False
        while not ended:
            self._try()
            ended = self._done.wait(EVERY_SECS)
        self._try()
        self._client.close()

    def _try(self) -> None:
        try:
            self._publish()
        except HeadraceError as error:
            if not self._is_failing:
                logger.warning("progress cannot be published to %s: %s", self._place, error)
            self._is_failing = True
            self._is_there = False
        else:
            self._is_failing = False

    def _publish(self) -> None:
        if not self._is_there:
            self._create()
        self._stream.append_json(change(self._progress))
        self._said += 1
        if self._said % KEPT_MESSAGES == 0:
            self._compact()

    def _create(self) -> None:
        bucket_id = self._place.split("/")[1]
        with suppress(BucketExists):
            self._client.bucket(bucket_id).create()
        self._stream.create("application/json")
        self._is_there = True

    def _compact(self) -> None:
        view = self._stream.state()
        state = view.catch_up()
        self._stream.publish_snapshot(view.offset, state.dump(view.offset), STATE_MEDIA_TYPE)


def change(progress: Progress) -> dict[str, Any]:
    """The published fields. The position in each stream is only in the pipeline's own file."""
    value = asdict(progress)
    del value["offsets"]
    return {
        "type": TYPE,
        "key": progress.pipeline,
        "value": value,
        "headers": {"operation": "upsert"},
    }
