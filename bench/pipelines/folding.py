"""`compact`: many changes of few keys, folded and published, beside reading and parsing them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from bench.pipelines.measuring import BoundedRow, Done, Work
from bench.pipelines.place import Place
from headrace.client import Settings
from headrace.protocol import framed
from headrace.protocol.json_mode import response_body
from headrace.protocol.offsets import BEGINNING
from headrace.spark.pipelines import compact
from headrace.spark.streams.stream_api import StreamApi

BUCKET = "bench-compact"
CHANGE = (
    'concat(\'{{"type":"item","key":"\', id % {keys}, \'","value":{{"n":\', id, \'}},'
    '"headers":{{"operation":"upsert"}}}}\') value'
)


def rows(place: Place) -> Iterator[BoundedRow]:
    folding = _Folding(place)
    yield BoundedRow(
        f"compact-{place.sizes.changes}-{place.sizes.keys}",
        Work(folding.compact, folding.fill),
        {"reading and parsing alone": Work(folding.parse, folding.fill)},
        unit="change",
    )


class _Folding:
    """A new stream for each run: one that was compacted has nothing to fold."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._number = 0
        place.client.bucket(BUCKET).create()

    @property
    def _stream(self) -> str:
        return f"/{BUCKET}/{self._number}"

    def fill(self) -> None:
        self._number += 1
        sizes, spark = self._place.sizes, self._place.spark
        changes = spark.range(sizes.changes).selectExpr(CHANGE.format(keys=sizes.keys))
        writer = changes.coalesce(1).write.format("headrace").option("createStreams", "true")
        writer = writer.option("url", self._place.server.url).option("stream", self._stream)
        writer.mode("append").save()

    def compact(self) -> Done:
        config = compact.Config(server=self._place.server.url, streams=(self._stream,))
        folded = compact.compact(self._place.spark, config)
        assert folded == self._place.sizes.changes, f"{folded} changes were folded"
        return Done(folded)

    def parse(self) -> Done:
        count = 0
        server = StreamApi(Settings(url=self._place.server.url))
        for chunk in server.read_on(self._stream, BEGINNING):
            data = bytes(framed.decode(chunk.body).data)
            count += len(msgspec.json.decode(response_body(data)))
        server.close()
        return Done(count)
