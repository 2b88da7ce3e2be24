"""Ids in order: added, removed and paged through at a cost that hardly grows with their number.

Short sorted lists behind one list of their first ids. Python compares strings by code point,
which is the order of their UTF-8 bytes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import Final

LIST_IDS_MAX: Final = 1024


class SortedIds:
    def __init__(self, ids: Iterable[str] = ()) -> None:
        ordered = sorted(ids)
        half = LIST_IDS_MAX // 2
        self._lists = [ordered[at : at + half] for at in range(0, len(ordered), half)] or [[]]
        self._firsts = [part[0] if part else "" for part in self._lists]
        self._count = len(ordered)

    def __len__(self) -> int:
        return self._count

    def _place(self, id: str) -> int:
        """The list that holds `id`, or would."""
        return max(0, bisect_right(self._firsts, id) - 1)

    def add(self, id: str) -> None:
        place = self._place(id)
        part = self._lists[place]
        at = bisect_left(part, id)
        if at < len(part) and part[at] == id:
            return
        insort(part, id)
        self._firsts[place] = part[0]
        self._count += 1
        if len(part) > LIST_IDS_MAX:
            upper = part[LIST_IDS_MAX // 2 :]
            del part[LIST_IDS_MAX // 2 :]
            self._lists.insert(place + 1, upper)
            self._firsts.insert(place + 1, upper[0])

    def discard(self, id: str) -> None:
        place = self._place(id)
        part = self._lists[place]
        at = bisect_left(part, id)
        if at == len(part) or part[at] != id:
            return
        del part[at]
        self._count -= 1
        if part:
            self._firsts[place] = part[0]
        elif len(self._lists) > 1:
            del self._lists[place]
            del self._firsts[place]

    def after(self, id: str, *, inclusive: bool = False) -> Iterator[str]:
        """Ids that follow `id`, in order; what is asked for is what is visited."""
        place = self._place(id)
        find = bisect_left if inclusive else bisect_right
        at = find(self._lists[place], id)
        for part in range(place, len(self._lists)):
            ids = self._lists[part]
            for index in range(at, len(ids)):
                yield ids[index]
            at = 0
