"""Change messages folded into collections, without input or output.

Understands the State Protocol (`headers.operation`: insert, update, upsert, delete;
`headers.control`: snapshot-start, snapshot-end, reset), the session events of the durable-sessions
pattern (`operation`: set, remove, append), and snapshots of the layout in docs/state.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast

import msgspec

T = TypeVar("T")

STATE_MEDIA_TYPE = "application/vnd.headrace.state+json"
TXIDS_MAX = 10_000  # remembered, so that a writer can wait for its own; a session writes far fewer

_ANYTHING = cast(type[Any], Any)

Collections = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Change:
    """One entity as it now is; `value` is None after a delete.

    `reset` covers everything: whatever was known before is gone.
    """

    kind: Literal["set", "delete", "reset"]
    type: str = ""
    key: str = ""
    value: Any = None
    old_value: Any = None
    txid: str | None = None


Listener = Callable[[Change], None]


class _Snapshot(msgspec.Struct):
    offset: str
    collections: Collections


class State:
    """Collections by type, entities by key."""

    def __init__(self) -> None:
        self._collections: Collections = {}
        self._incoming: Collections | None = None
        self._listeners: list[Listener] = []
        self._txids: dict[str, None] = {}
        self._txid_order: deque[str] = deque()
        self.ignored = 0
        """Messages that were not changes: of another format, or without a key."""

    # -- looking ----------------------------------------------------------------------------------

    @property
    def types(self) -> list[str]:
        return sorted(self._collections)

    def get(self, type_: str, key: str) -> Any:
        return self._collections.get(type_, {}).get(key)

    def rows(self, type_: str) -> Mapping[str, Any]:
        return self._collections.get(type_, {})

    def collection(self, type_: str, of: type[T] = _ANYTHING) -> Collection[T]:
        """A live view of one type; `of` is a dataclass, a msgspec Struct or a TypedDict."""
        return Collection(self, type_, of)

    def has_txid(self, txid: str) -> bool:
        """Whether a change of this transaction has been applied, lately."""
        return txid in self._txids

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` after each change; call the result to stop."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # -- changing ---------------------------------------------------------------------------------

    def apply(self, message: Any) -> list[Change]:
        """Fold one message in; what changed."""
        if not isinstance(message, dict):
            self.ignored += 1
            return []
        headers = message.get("headers")
        headers = headers if isinstance(headers, dict) else {}
        if "control" in headers:
            return self._tell(self._control(headers["control"]))
        change = self._fold(message, headers)
        if change is None:
            self.ignored += 1
            return []
        self._remember(change.txid)
        if self._incoming is not None:
            return []  # shown when the snapshot is complete
        return self._tell([change])

    def _fold(self, message: dict[str, Any], headers: dict[str, Any]) -> Change | None:
        operation, txid = headers.get("operation", message.get("operation")), headers.get("txid")
        type_, key = message.get("type"), message.get("key")
        if not (isinstance(type_, str) and isinstance(key, str) and type_):
            return None  # a key may be empty, as a row's key in Postgres may
        target = self._collections if self._incoming is None else self._incoming
        old = target.get(type_, {}).get(key)
        txid = txid if isinstance(txid, str) else None
        if operation in ("delete", "remove"):
            target.get(type_, {}).pop(key, None)
            return Change("delete", type_, key, None, old, txid)
        if operation in ("insert", "update", "upsert", "set"):
            was = headers.get("was")
            before = target.get(type_, {}).get(was) if isinstance(was, str) else old
            value = completed(message.get("value"), headers.get("unchanged"), before)
        elif operation == "append":
            value = joined(old, message.get("value"))
        else:
            return None
        target.setdefault(type_, {})[key] = value
        return Change("set", type_, key, value, old, txid)

    def _control(self, control: Any) -> list[Change]:
        if control == "reset":
            self._collections, self._incoming = {}, None
            return [Change("reset")]
        if control == "snapshot-start":
            self._incoming = {}
        elif control == "snapshot-end" and self._incoming is not None:
            incoming, self._incoming = self._incoming, None
            return self._replaced(incoming)
        return []

    def _replaced(self, collections: Collections) -> list[Change]:
        self._collections = collections
        rows = [(t, k, v) for t, entities in collections.items() for k, v in entities.items()]
        return [Change("reset"), *(Change("set", t, k, v) for t, k, v in rows)]

    def _tell(self, changes: list[Change]) -> list[Change]:
        for change in changes:
            for listener in list(self._listeners):
                listener(change)
        return changes

    def _remember(self, txid: str | None) -> None:
        if txid is None or txid in self._txids:
            return
        self._txids[txid] = None
        self._txid_order.append(txid)
        if len(self._txid_order) > TXIDS_MAX:
            del self._txids[self._txid_order.popleft()]

    # -- snapshots --------------------------------------------------------------------------------

    def load(self, snapshot: bytes) -> list[Change]:
        """Become what a snapshot says; ValueError if it is not of our layout."""
        try:
            document = msgspec.json.decode(snapshot, type=_Snapshot)
        except msgspec.MsgspecError as error:
            raise ValueError(f"not a snapshot of {STATE_MEDIA_TYPE}: {error}") from None
        self._incoming = None
        return self._tell(self._replaced(document.collections))

    def clear(self) -> list[Change]:
        """Forget everything."""
        return self._tell(self._control("reset"))

    def dump(self, offset: str) -> bytes:
        """The snapshot of this state at `offset`."""
        filled = {type_: rows for type_, rows in self._collections.items() if rows}
        return msgspec.json.encode({"offset": offset, "collections": filled})


class Collection(Mapping[str, T], Generic[T]):
    """One type of a state, by key, always as it is now; values are converted on access."""

    def __init__(self, state: State, type_: str, of: type[T]) -> None:
        self._state = state
        self._type = type_
        self._of = of

    def __getitem__(self, key: str) -> T:
        return self._converted(self._state.rows(self._type)[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._state.rows(self._type))

    def __len__(self) -> int:
        return len(self._state.rows(self._type))

    def subscribe(self, listener: Callable[[str, T | None], None]) -> Callable[[], None]:
        """Call `listener(key, value)` after each change of this type; None after a delete."""

        def hear(change: Change) -> None:
            if change.type == self._type:
                gone = change.kind == "delete"
                listener(change.key, None if gone else self._converted(change.value))

        return self._state.subscribe(hear)

    def _converted(self, value: Any) -> T:
        return value if self._of is _ANYTHING else msgspec.convert(value, self._of)


def completed(value: Any, unchanged: Any, before: Any) -> Any:
    """A row with the columns that a change left out, since it did not touch them."""
    if not (isinstance(value, dict) and isinstance(unchanged, list) and isinstance(before, dict)):
        return value
    return {name: part for name, part in before.items() if name in unchanged} | value


def joined(old: Any, new: Any) -> Any:
    """What an `append` makes: text and lists grow, objects grow field by field."""
    if isinstance(old, str) and isinstance(new, str):
        return old + new
    if isinstance(old, list):
        return [*old, *new] if isinstance(new, list) else [*old, new]
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {name: joined(old.get(name), part) for name, part in new.items()}
    return new
