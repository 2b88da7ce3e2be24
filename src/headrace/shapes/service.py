"""The shapes themselves: made on request, fed from one slot, kept through restarts.

One thread follows the slot. It acknowledges a transaction only when every shape has all of it in
its log, so a crash repeats transactions and never skips one; what a log has already is left out. A
shape that cannot go on (its table was truncated or changed) is dropped: its readers get 409 and
have to fetch anew. Which shapes there are is itself a stream, the registry.

    thread          does
    event loop      answers requests; wakes those that wait for news
    a worker each   makes one shape: its snapshot, then what has waited for it meanwhile
    shapes-feed     gives every transaction to every shape
    shapes-watch    ends shapes whose tables were replaced

`_lock` is over the set of shapes and what each of them waits for. A shape that is being made is in
the set before its snapshot is taken: a transaction that commits in between is in the snapshot, in
what waits, or in both, and `TableSnapshot.saw` sorts that out.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain

import httpx
import psycopg

from headrace.client import Client, Retry
from headrace.errors import HeadraceError, Refused
from headrace.shapes import catalog, subsets, tables
from headrace.shapes.definition import BadRequest, Definition, Offset
from headrace.shapes.feed import BATCH_BYTES, SlotFeed, Transaction
from headrace.shapes.feed_slot import ChangesLost, FeedSlot
from headrace.shapes.logs import ShapeLog
from headrace.shapes.messages import Entry, EntryWriter, Numbering, RowChange, snapshot_end
from headrace.shapes.registry import Item, Registry
from headrace.shapes.subsets import Subset
from headrace.shapes.tables import Table, TableSnapshot

SHAPES_MAX = 1000
WAITING_BYTES_MAX = 16 << 20
REGISTRY_VERSION = 4  # before, it was not said which table and which Postgres it was
WATCH_SECS = 0.5
logger = logging.getLogger(__name__)


class TooManyShapes(RuntimeError):
    """The limit on shapes is reached."""


class TableChanged(RuntimeError):
    """A table was altered or dropped while a shape of it was made."""


@dataclass
class Shape:
    """One shape. `waiting` holds transactions while its snapshot is being written."""

    handle: str
    definition: Definition
    table: Table
    log: ShapeLog
    snapshot: TableSnapshot | None = None
    waiting: list[Transaction] | None = field(default_factory=list)
    waiting_bytes: int = 0
    numbering: Numbering = field(default_factory=Numbering)
    is_dropped: bool = False
    used_at: float = field(default_factory=time.monotonic)
    readers: int = 0  # who wait for news; they count as long as they do
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Shapes:
    """Everything about shapes that is not HTTP."""

    def __init__(
        self,
        postgres_url: str,
        server_url: str,
        *,
        slot: str,
        prefix: str,
        shapes_max: int = SHAPES_MAX,
    ) -> None:
        self._shapes_max = shapes_max
        self._url = postgres_url
        # A transaction is appended sooner or later: only a refusal ends a shape.
        self._client = Client(server_url, retry=Retry(retries_max=None, delay_max_ms=2000))
        self._http = httpx.AsyncClient(trust_env=False, timeout=60)
        self._prefix = prefix
        self._registry = Registry(self._client, f"{prefix}/registry")
        self._slot = FeedSlot(postgres_url, slot)
        self._feed = SlotFeed(postgres_url, self._slot)
        self._by_key: dict[str, Shape] = {}
        self._making: dict[str, asyncio.Task[Shape]] = {}
        self._lock = threading.Lock()  # over the set of shapes and what each of them waits for
        self._room = threading.Condition(self._lock)  # there is some for what waits
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = threading.Event()
        self.is_draining = False
        self.last_lsn = 0
        self.failure: BaseException | None = None
        self.on_failure: Callable[[], None] = lambda: None

    # --- life ---

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._recover)
        self._thread = threading.Thread(target=self._follow, name="shapes-feed", daemon=True)
        self._thread.start()
        self._watcher = threading.Thread(target=self._watch, name="shapes-watch", daemon=True)
        self._watcher.start()

    def drain(self) -> None:
        """On the loop: waiting requests are answered now, and reconnect elsewhere."""
        self.is_draining = True
        for shape in list(self._by_key.values()):
            shape.news.set()

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.to_thread(self._thread.join, 10)
        await asyncio.to_thread(self._watcher.join, 10)
        await self._http.aclose()
        self._client.close()

    def _recover(self) -> None:
        """Bring back the shapes of the registry, unless the slot lost what they need."""
        self._registry.recover()
        known = dict(self._registry.shapes)
        systems = {item["system"] for item in known.values() if "system" in item}
        loss = self._slot.begin(systems)
        if loss is not None and known:
            logger.warning("all shapes start anew: %s", loss)
        with tables.connect(self._url) as connection:
            for handle, item in known.items():
                shape = self._revive(connection, handle, item) if loss is None else None
                if shape is None:
                    self._forget(handle)
                else:
                    self._by_key[shape.definition.key] = shape

    def _revive(self, connection: psycopg.Connection, handle: str, item: Item) -> Shape | None:
        definition, stored = Definition.of(item["definition"]), item["snapshot"]
        if item.get("version") != REGISTRY_VERSION:
            return None
        try:
            table = catalog.describe(connection, definition)
            if table.identity != item["identity"]:
                return None
            shape = Shape(handle, definition, table, self._log(handle), waiting=None)
            shape.snapshot = TableSnapshot(**{**stored, "running": tuple(stored["running"])})
            shape.log.recover()
        except (BadRequest, Refused):
            return None
        known = max(shape.log.tail[0], shape.snapshot.flushed)
        doubt = self._slot.server.doubts(item["system"], known)
        if doubt is not None:
            logger.warning("shape %s starts anew: %s", handle, doubt)
            return None
        self._slot.know(shape.snapshot.flushed)
        return shape

    def _log(self, handle: str) -> ShapeLog:
        return ShapeLog(self._client, self._http, f"{self._prefix}/{handle}", time.time_ns())

    def _forget(self, handle: str) -> None:
        # The log first: a full server then has room for the word that it is gone.
        try:
            self._log(handle).delete()
        except HeadraceError as error:
            logger.info("cannot delete the log of shape %s: %s", handle, error)
        self._registry.remove(handle)

    # --- asking for a shape ---

    async def get(self, definition: Definition) -> Shape:
        """The shape of a definition, made if there is none.

        It goes on being made, for all who ask for it, when one of them gives up.
        """
        key = definition.key
        shape = self._by_key.get(key)
        if key in self._making or shape is None:
            if key not in self._making:
                making = asyncio.create_task(asyncio.to_thread(self._make, definition))
                self._making[key] = making
                making.add_done_callback(partial(self._made, key))
            shape = await asyncio.shield(self._making[key])
        shape.used_at = time.monotonic()
        return shape

    def _made(self, key: str, making: asyncio.Task[Shape]) -> None:
        self._making.pop(key)
        if not making.cancelled():
            making.exception()  # retrieved, in case no request waits for it any more

    def subset(self, shape: Shape, subset: Subset) -> bytes:
        """Some rows of a shape, as they are in the table now."""
        return subsets.read(self._url, shape.definition, shape.table, subset)

    def by_definition(self, definition: Definition) -> Shape | None:
        return self._by_key.get(definition.key)

    def by_handle(self, handle: str) -> Shape | None:
        return next((s for s in list(self._by_key.values()) if s.handle == handle), None)

    def _make(self, definition: Definition) -> Shape:
        handle = f"{secrets.randbelow(10**8)}-{time.time_ns() // 1000}"
        with tables.connect(self._url) as connection:
            table = catalog.describe(connection, definition)
            tables.clause(definition, table)
            catalog.publish(connection, definition, table)
            # As it is now that it is published: whatever changes from here on will be noticed.
            table = catalog.describe(connection, definition)
            shape = Shape(handle, definition, table, self._log(handle))
            shape.log.create()
            # From here on transactions wait for the shape; what was done before, the snapshot has.
            with self._lock:
                self._make_room()
                self._by_key[definition.key] = shape
            try:
                self._fill(connection, shape)
            except BaseException:
                with self._lock:
                    self._by_key.pop(definition.key, None)
                    self._room.notify_all()
                shape.log.delete()
                raise
        return shape

    def _make_room(self) -> None:
        """Drop the least recently used shapes, those without waiting requests first."""
        while len(self._by_key) >= self._shapes_max:
            others = [shape for shape in self._by_key.values() if shape.waiting is None]
            if not others:
                raise TooManyShapes(f"{self._shapes_max} shapes are being made; try again.")
            self._drop(min(others, key=lambda shape: (shape.readers > 0, shape.used_at)))

    def _fill(self, connection: psycopg.Connection, shape: Shape) -> None:
        writer = EntryWriter(shape.table, shape.definition.replica)
        try:
            with connection.transaction():
                connection.execute("set transaction isolation level repeatable read, read only")
                where = tables.clause(shape.definition, shape.table)
                shape.snapshot, rows = tables.rows(
                    connection, shape.definition, shape.table, [] if where is None else [where]
                )
                has_rows = shape.definition.log == "full"
                ending = [snapshot_end(shape.snapshot)] if has_rows else []
                entries = chain(map(writer.snapshot, rows), ending)
                shape.log.append(((0, number), entry) for number, entry in enumerate(entries))
                self._slot.know(shape.snapshot.flushed)
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
            raise TableChanged("The table was changed while it was read; try again.") from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise BadRequest(table=f"cannot be read: {error.diag.message_primary}") from error
        except (psycopg.DataError, psycopg.ProgrammingError) as error:
            sentence = error.diag.message_primary or str(error)
            raise BadRequest(where=sentence) from error
        shape.log.publish()
        with self._lock:
            # What waited was acknowledged already, so it must be in before the shape is one that
            # a restart brings back.
            for batch in _batches(shape.waiting or []):
                self._apply(connection, shape, batch)
            shape.waiting = None
            self._room.notify_all()
            if not shape.is_dropped:
                self._register(shape)

    def _register(self, shape: Shape) -> None:
        assert shape.snapshot is not None, "it has been taken"
        self._registry.add(
            {
                "handle": shape.handle,
                "definition": asdict(shape.definition),
                "identity": shape.table.identity,
                "snapshot": asdict(shape.snapshot),
                "system": self._slot.server.name,
                "version": REGISTRY_VERSION,
            }
        )

    # --- following the slot ---

    def _follow(self) -> None:
        try:
            connection = self._feed.reconnected(partial(tables.connect, self._url), self._stop)
            while not self._stop.is_set():
                try:
                    for batch in self._feed.batches(self._stop):
                        connection = self._take(connection, batch)
                except ChangesLost as error:
                    logger.warning("all shapes start anew: %s", error)
                    self._start_anew()
            connection.close()
        except Exception as error:
            self._fail(error)

    def _start_anew(self) -> None:
        """From a new slot: what readers have is followed by changes that nobody has any more."""
        with self._lock:
            for shape in list(self._by_key.values()):
                self._drop(shape)
            self.last_lsn = 0  # of a log that may have been longer than this one
            # A shape that is made from here on waits for the lock: its snapshot is behind the slot.
            self._feed.reconnected(self._slot.renew, self._stop)
            self._room.notify_all()

    def _fail(self, error: BaseException) -> None:
        """End the process: without a feed no answer may say that it is up to date."""
        if not self._stop.is_set():
            logger.critical("shapes are no longer followed", exc_info=error)
            self.failure = error
            self.on_failure()

    def _watch(self) -> None:
        """End shapes whose tables have become others. A message would come with a row, if ever."""
        try:
            self._watch_tables()
        except Exception as error:
            self._fail(error)

    def _watch_tables(self) -> None:
        connection: psycopg.Connection | None = None
        wait_secs = WATCH_SECS
        while not self._stop.wait(wait_secs):
            begun = time.monotonic()
            try:
                connection = connection or tables.connect(self._url)
                self._compare(connection)
            except psycopg.Error as error:
                logger.warning("cannot read the table definitions: %s", str(error).strip())
                if connection is not None:
                    connection.close()
                connection = None
            wait_secs = max(WATCH_SECS, 10 * (time.monotonic() - begun))
        if connection is not None:
            connection.close()

    def _compare(self, connection: psycopg.Connection) -> None:
        shapes = [s for s in list(self._by_key.values()) if s.waiting is None]
        now = catalog.identities(connection, {shape.table.oid for shape in shapes})
        for shape in shapes:
            identity, _ = now.get(shape.table.oid, ("", []))
            if identity != shape.table.identity:
                logger.info("dropping shape %s: its table was replaced", shape.handle)
                self.drop(shape)

    def _take(self, connection: psycopg.Connection, batch: list[Transaction]) -> psycopg.Connection:
        """Give a batch to every shape it concerns, waiting while Postgres is unreachable."""
        with self._lock:
            # A snapshot that takes long holds the slot up here, and not the memory: Postgres keeps
            # the log.
            while any(s.waiting_bytes > WAITING_BYTES_MAX for s in self._waiting()):
                self._room.wait()
            # Under the lock to the end: a shape that was just made takes what waited and joins the
            # others in one step (`_fill`), so no batch falls between.
            concerned = list(self._by_key.values())
            while concerned:
                try:
                    self._give(connection, concerned[-1], batch)
                    concerned.pop()
                except psycopg.OperationalError as error:
                    logger.warning("Postgres is unreachable: %s", str(error).strip())
                    connection.close()
                    opened = partial(tables.connect, self._url)
                    connection = self._feed.reconnected(opened, self._stop)
        self.last_lsn = max(self.last_lsn, batch[-1].end_lsn)
        return connection

    def _waiting(self) -> Iterator[Shape]:
        return (shape for shape in self._by_key.values() if shape.waiting is not None)

    def _give(self, connection: psycopg.Connection, shape: Shape, batch: list[Transaction]) -> None:
        if shape.waiting is None:
            self._apply(connection, shape, batch)
        else:
            seen = shape.snapshot
            news = [d for d in batch if seen is None or not seen.saw(d.commit_lsn, d.xid)]
            shape.waiting += news
            shape.waiting_bytes += sum(done.size_bytes for done in news)

    def _apply(
        self, connection: psycopg.Connection, shape: Shape, batch: list[Transaction]
    ) -> None:
        if shape.is_dropped:
            return
        assert shape.snapshot is not None, "a shape that no longer waits has one"
        news = [done for done in batch if not shape.snapshot.saw(done.commit_lsn, done.xid)]
        if any(done.ends(shape.table) for done in news):
            self._drop(shape)
            return
        try:
            belongs = self._belongs(connection, shape, news)
            shape.log.append(self._entries(shape, news, belongs))
            if batch[-1].is_last_part and shape.log.last < shape.log.tail:
                shape.log.publish()
                self._notify(shape)
        except psycopg.OperationalError:
            raise  # Postgres is unreachable: the batch is retried
        except (Refused, psycopg.Error) as error:
            # Its stream is gone or takes no more, or its clause fails on a row (a cast that cannot
            # be made): its readers start again from a snapshot, or are refused one.
            logger.warning("shape %s cannot go on: %s", shape.handle, error)
            self._drop(shape)

    def _belongs(
        self, connection: psycopg.Connection, shape: Shape, news: list[Transaction]
    ) -> Iterator[bool]:
        """Of every old and every new row in turn, whether it belongs to the shape."""
        changes = (change for done in news for change in done.of(shape.table))
        rows = [row for each in changes for row in (each.old, each.new) if row is not None]
        return iter(tables.matches(connection, shape.definition, shape.table, rows))

    def _entries(
        self, shape: Shape, news: list[Transaction], belongs: Iterator[bool]
    ) -> Iterator[tuple[Offset, Entry]]:
        writer = EntryWriter(shape.table, shape.definition.replica)
        for done in news:
            if done.is_first_part:
                shape.numbering.begin()
            for each in done.of(shape.table):
                old_belongs = each.old is not None and next(belongs)
                new_belongs = each.new is not None and next(belongs)
                change = RowChange(done.xid, each.old, each.new, old_belongs, new_belongs)
                for entry in writer.entries(change):
                    yield from shape.numbering.number(done.commit_lsn, entry)
            if done.is_last_part:
                yield from shape.numbering.end()

    def _drop(self, shape: Shape) -> None:
        self._by_key.pop(shape.definition.key, None)
        shape.is_dropped = True
        self._notify(shape)
        self._forget(shape.handle)

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


def _batches(transactions: list[Transaction]) -> Iterator[list[Transaction]]:
    """What waited, in batches of a size that a batch of the feed may have."""
    batch: list[Transaction] = []
    for done in transactions:
        batch.append(done)
        if sum(each.size_bytes for each in batch) >= BATCH_BYTES:
            yield batch
            batch = []
    if batch:
        yield batch
