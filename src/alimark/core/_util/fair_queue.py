"""A queue that serves its owners in turn, a limit on the work of each, and a rule for who may still enter a full queue."""

from __future__ import annotations

import queue
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """A queue for several threads that gives out one item of each owner in turn; the items of an owner stay in order.

    Args:
        owner_of: Tells whose item it is.

    Example:
        >>> fair = FairQueue(lambda item: item[0])
        >>> for item in ("a1", "a2", "a3", "b1"):
        ...     fair.put(item)
        >>> [fair.get() for _ in range(4)]
        ['a1', 'b1', 'a2', 'a3']
    """

    def __init__(self, owner_of: Callable[[Item], str]) -> None:
        self._owner_of = owner_of
        self._items: OrderedDict[str, deque[Item]] = OrderedDict()  # the owner whose turn it is comes first
        self._changed = threading.Condition()

    def __len__(self) -> int:
        with self._changed:
            return sum(map(len, self._items.values()))

    def owners(self) -> set[str]:
        """The owners of what waits."""
        with self._changed:
            return set(self._items)

    def empty(self) -> bool:
        """Whether nothing waits."""
        return not len(self)

    def put(self, item: Item) -> None:
        """Adds an item behind the others of its owner."""
        with self._changed:
            self._items.setdefault(self._owner_of(item), deque()).append(item)
            self._changed.notify_all()

    def get(self, block: bool = True, accepts: Callable[[Item], bool] = lambda item: True) -> Item:
        """Takes the next item that is accepted; waits for one, or raises `queue.Empty` without `block`."""
        with self._changed:
            while True:
                for owner, items in self._items.items():
                    place = next((place for place, item in enumerate(items) if accepts(item)), None)
                    if place is not None:
                        return self._take(owner, place)
                if not block:
                    raise queue.Empty
                self._changed.wait()

    def _take(self, owner: str, place: int) -> Item:
        """Takes an item of an owner, who then stands behind all others."""
        items = self._items.pop(owner)
        item = items[place]
        del items[place]
        if items:
            self._items[owner] = items
        return item

    def get_nowait(self) -> Item:
        """Takes the next item, or raises `queue.Empty`."""
        return self.get(block=False)

    def wake(self) -> None:
        """Lets threads that wait in `get` ask again which items are accepted."""
        with self._changed:
            self._changed.notify_all()


class AtMost:
    """Counts the pieces of work of each owner that are under way, and lets an owner begin no more than a number of them.

    Args:
        each: The number.

    Example:
        >>> under_way = AtMost(1)
        >>> under_way.enter("a"), under_way.enter("a"), under_way.enter("b")
        (True, False, True)
        >>> under_way.leave("a")
        >>> under_way.enter("a")
        True
    """

    def __init__(self, each: int) -> None:
        self._each = each
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def enter(self, owner: str) -> bool:
        """Counts a piece of work of an owner; False, and nothing is counted, where the owner has enough."""
        with self._lock:
            if self._counts[owner] >= self._each:
                return False
            self._counts[owner] += 1
            return True

    def leave(self, owner: str) -> None:
        """Ends a piece of work of an owner."""
        with self._lock:
            self._counts[owner] -= 1
            self._counts = +self._counts  # owners without work are forgotten


def may_enter(taken: Mapping[str, int], owner: str, count: int, most: int) -> bool:
    """Whether an owner may take `count` more places of a queue with `most`.

    While there is room, anybody may. An owner that has less than its share may enter a full queue, so that nobody is kept out
    by the many requests of another; the queue then has a few more items than `most`.

    Example:
        >>> may_enter({"a": 8}, "b", 1, 8), may_enter({"a": 8}, "a", 1, 8), may_enter({"a": 8, "b": 4}, "b", 1, 8)
        (True, False, False)
    """
    owners = {name for name, places in taken.items() if places} | {owner}
    mine = taken.get(owner, 0) + count
    return sum(taken.values()) + count <= most or (len(owners) > 1 and mine <= most // len(owners))
