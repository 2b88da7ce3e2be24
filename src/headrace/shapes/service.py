"""The shapes themselves: made on request, fed from one slot, kept through restarts.

One thread follows the slot. It acknowledges a transaction only when every shape has it in its
stream, so a crash repeats transactions and never skips one; a shape that has one already leaves it
out. A shape that cannot go on (its table was truncated or changed) is dropped: its readers are told
to fetch anew. Which shapes there are is itself a stream, the registry.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

import httpx
import psycopg

from headrace.client import Client, Retry
from headrace.errors import HeadraceError, Refused
from headrace.shapes import tables
from headrace.shapes.definition import BadRequest, Definition, Offset
from headrace.shapes.feed import Feed, Transaction
from headrace.shapes.logs import ShapeLog
from headrace.shapes.messages import Entry, RowChange, Writer
from headrace.shapes.tables import Row, Snapshot, Table

SHAPES_MAX = 1000
logger = logging.getLogger(__name__)


class TooManyShapes(RuntimeError):
    """The limit on shapes is reached."""


@dataclass
class Shape:
    """One shape. `waiting` holds transactions while its snapshot is being written."""

    handle: str
    definition: Definition
    table: Table
    log: ShapeLog
    snapshot: Snapshot | None = None
    waiting: list[Transaction] | None = field(default_factory=list)
    is_dropped: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Shapes:
    """Everything about shapes that is not HTTP."""

    def __init__(self, postgres_url: str, server_url: str, *, slot: str, prefix: str) -> None:
        self._url = postgres_url
        # A transaction is appended sooner or later: only a refusal ends a shape.
        self._client = Client(server_url, retry=Retry(retries_max=None, delay_max_ms=2000))
        self._http = httpx.AsyncClient(trust_env=False, timeout=60)
        self._prefix = prefix
        self._registry = self._client.stream(f"{prefix}/registry")
        self._feed = Feed(postgres_url, slot)
        self._by_key: dict[str, Shape] = {}
        self._making: dict[str, asyncio.Lock] = {}
        self._lock = threading.Lock()  # over the set of shapes and what each of them waits for
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = threading.Event()
        self.is_draining = False
        self.last_lsn = 0
        self.failure: BaseException | None = None

    # --- life ---

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._recover)
        self._thread = threading.Thread(target=self._follow, name="shapes-feed", daemon=True)
        self._thread.start()

    def drain(self) -> None:
        """On the loop: whoever waits for news gets an answer now, and comes back elsewhere."""
        self.is_draining = True
        for shape in list(self._by_key.values()):
            shape.news.set()

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.to_thread(self._thread.join, 10)
        await self._http.aclose()
        self._client.close()

    def _recover(self) -> None:
        """Bring back the shapes of the registry, unless the slot lost what they need."""
        self._registry.create("application/json")
        known: dict[str, dict[str, object]] = {}
        for item in self._registry.read_json():
            if item["operation"] == "create":
                known[item["handle"]] = item
            else:
                known.pop(item["handle"], None)
        is_new = self._feed.ensure()
        with tables.connect(self._url) as connection:
            for handle, item in known.items():
                shape = None if is_new else self._revive(connection, handle, item)
                if shape is None:
                    self._forget(handle)
                else:
                    self._by_key[shape.definition.key] = shape

    def _revive(
        self, connection: psycopg.Connection, handle: str, item: dict[str, object]
    ) -> Shape | None:
        definition = Definition.of(item["definition"])  # type: ignore[arg-type]
        stored = item["snapshot"]
        try:
            table = tables.describe(connection, definition)
            if table.schema_header != item["schema"]:
                return None
            shape = Shape(handle, definition, table, self._log(handle), waiting=None)
            assert isinstance(stored, dict), "as it was written"
            shape.snapshot = Snapshot(**{**stored, "running": tuple(stored["running"])})
            shape.log.recover()
        except (BadRequest, Refused):
            return None
        return shape

    def _log(self, handle: str) -> ShapeLog:
        return ShapeLog(self._client, self._http, f"{self._prefix}/{handle}", time.time_ns())

    def _forget(self, handle: str) -> None:
        self._registry.append_json({"operation": "drop", "handle": handle}, repeat_in_doubt=True)
        try:
            self._client.stream(f"{self._prefix}/{handle}").delete()
        except HeadraceError as error:
            logger.info("the log of %s stays: %s", handle, error)

    # --- asking for a shape ---

    async def get(self, definition: Definition) -> Shape:
        """The shape of a definition, made if there is none."""
        async with self._making.setdefault(definition.key, asyncio.Lock()):
            shape = self._by_key.get(definition.key)
            if shape is None:
                shape = await asyncio.to_thread(self._make, definition)
            return shape

    def by_handle(self, handle: str) -> Shape | None:
        return next((s for s in list(self._by_key.values()) if s.handle == handle), None)

    def _make(self, definition: Definition) -> Shape:
        if len(self._by_key) >= SHAPES_MAX:
            raise TooManyShapes(f"There are {SHAPES_MAX} shapes already.")
        handle = f"{secrets.randbelow(10**8)}-{time.time_ns() // 1000}"
        with tables.connect(self._url) as connection:
            table = tables.describe(connection, definition)
            tables.clause(definition, table)
            try:
                tables.publish(connection, table)
            except psycopg.errors.InsufficientPrivilege as error:
                raise BadRequest(
                    table=f"cannot be followed: {error.diag.message_primary}"
                ) from error
            shape = Shape(handle, definition, table, self._log(handle))
            shape.log.create()
            # From here on transactions wait for the shape; what was done before, the snapshot has.
            with self._lock:
                self._by_key[definition.key] = shape
            try:
                self._fill(connection, shape)
            except BaseException:
                with self._lock:
                    self._by_key.pop(definition.key, None)
                shape.log.delete()
                raise
        return shape

    def _fill(self, connection: psycopg.Connection, shape: Shape) -> None:
        writer = Writer(shape.table, shape.definition.replica)
        number = 0
        try:
            with connection.transaction():
                connection.execute("set transaction isolation level repeatable read, read only")
                shape.snapshot, batches = tables.rows(connection, shape.definition, shape.table)
                for batch in batches:
                    entries: list[tuple[Offset, Entry]] = []
                    for row in batch:
                        entries.append(((0, number), writer.snapshot(row)))
                        number += 1
                    shape.log.append(entries)
        except (psycopg.DataError, psycopg.ProgrammingError) as error:
            sentence = error.diag.message_primary or str(error)
            raise BadRequest(where=sentence) from error
        with self._lock:
            # What waited was acknowledged already, so it must be in before the shape is one that
            # a restart brings back.
            self._apply(connection, shape, shape.waiting or [])
            shape.waiting = None
            if not shape.is_dropped:
                self._register(shape)

    def _register(self, shape: Shape) -> None:
        assert shape.snapshot is not None, "it has been taken"
        entry = {
            "operation": "create",
            "handle": shape.handle,
            "definition": asdict(shape.definition),
            "schema": shape.table.schema_header,
            "snapshot": asdict(shape.snapshot),
        }
        self._registry.append_json(entry, repeat_in_doubt=True)

    # --- following the slot ---

    def _follow(self) -> None:
        try:
            connection = tables.connect(self._url)
            for batch in self._feed.batches(self._stop):
                connection = self._take(connection, batch)
            connection.close()
        except Exception as error:
            self.failure = error
            logger.exception("the feed of shapes ended")

    def _take(self, connection: psycopg.Connection, batch: list[Transaction]) -> psycopg.Connection:
        """Give a batch to every shape it concerns, outlasting a Postgres that is away."""
        while True:
            try:
                with self._lock:
                    for shape in list(self._by_key.values()):
                        if shape.waiting is not None:
                            shape.waiting += batch
                        else:
                            self._apply(connection, shape, batch)
                break
            except psycopg.OperationalError as error:
                logger.warning("Postgres is away: %s", str(error).strip())
                connection.close()
                connection = self._feed.reconnected(lambda: tables.connect(self._url), self._stop)
        self.last_lsn = batch[-1].end_lsn
        return connection

    def _apply(
        self, connection: psycopg.Connection, shape: Shape, batch: list[Transaction]
    ) -> None:
        relation = shape.definition.relation
        assert shape.snapshot is not None, "a shape that no longer waits has one"
        news = [
            done
            for done in batch
            if not shape.snapshot.saw(done.commit_lsn, done.xid)
            # What was appended before a crash is repeated after it.
            and shape.log.last < (done.commit_lsn, 1)
        ]
        if any(relation in done.truncated or done.reshapes(relation, shape.table) for done in news):
            self._drop(shape)
            return
        changes = [(done, *row) for done in news for row in done.changes.get(relation, ())]
        try:
            entries = list(self._entries(connection, shape, changes))
            if entries:
                shape.log.append(entries)
                self._notify(shape)
        except psycopg.OperationalError:
            raise  # Postgres is away: the batch is tried again
        except (Refused, psycopg.Error) as error:
            # Its stream is full or gone, or its clause fails on a row (a cast that cannot be
            # made): its readers start again from a snapshot, or are refused one.
            logger.warning("shape %s cannot go on: %s", shape.handle, error)
            self._drop(shape)

    def _entries(
        self,
        connection: psycopg.Connection,
        shape: Shape,
        changes: list[tuple[Transaction, Row | None, Row | None]],
    ) -> Iterator[tuple[Offset, Entry]]:
        writer = Writer(shape.table, shape.definition.replica)
        rows = [row for _, *both in changes for row in both if row is not None]
        belongs = iter(tables.matches(connection, shape.definition, shape.table, rows))
        position, lsn = 0, 0
        for done, old, new in changes:
            if done.commit_lsn != lsn:
                # Positions start at 1: a reader that has seen everything before a place in the
                # log says so with position 0 of it.
                position, lsn = 1, done.commit_lsn
            old_belongs = old is not None and next(belongs)
            new_belongs = new is not None and next(belongs)
            for entry in writer.entries(RowChange(done.xid, old, new, old_belongs, new_belongs)):
                entry["headers"] |= {"lsn": str(lsn), "op_position": position}
                yield (lsn, position), entry
                position += 1

    def _drop(self, shape: Shape) -> None:
        self._by_key.pop(shape.definition.key, None)
        self._forget(shape.handle)
        shape.is_dropped = True
        self._notify(shape)

    def drop(self, shape: Shape) -> None:
        """Drop a shape on request."""
        with self._lock:
            if not shape.is_dropped:
                self._drop(shape)

    def _notify(self, shape: Shape) -> None:
        def wake() -> None:
            shape.news.set()
            shape.news = asyncio.Event()

        if self._loop is not None:
            self._loop.call_soon_threadsafe(wake)
