"""Work for many owners: a queue that serves them in turn, and threads that do their work."""

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from alimark.core._util.work import TimedFuture, working

Item = TypeVar("Item")
Result = TypeVar("Result")


class FairQueue(Generic[Item]):
    """A queue for several threads that gives out one item of each owner in turn; the items of an owner stay in order.

    At most `each` items of an owner may be under way at a time: `get` counts them, and `done` ends them.
    """

    def __init__(self, owner_of: Callable[[Item], str], each: int | None = None) -> None:
        self._owner_of, self._each = owner_of, each
        self._items: OrderedDict[str, deque[Item]] = OrderedDict()  # the owner whose turn it is comes first
        self._under_way: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        with self._changed:
            return sum(map(len, self._items.values()))

    def put(self, item: Item) -> None:
        """Adds an item behind the others of its owner."""
        with self._changed:
            self._items.setdefault(self._owner_of(item), deque()).append(item)
            self._changed.notify_all()

    def get(self, block: bool = True) -> Item | None:
        """Takes the next item; waits for one with `block`. None where there is none, or will be none after `close`."""
        with self._changed:
            while True:
                for owner in self._items:
                    if self._each is None:
                        return self._take(owner)
                    if self._under_way[owner] < self._each:
                        self._under_way[owner] += 1
                        return self._take(owner)
                if not block or (self._closed and not self._items):
                    return None
                self._changed.wait()

    def take(self) -> Item | None:
        """Takes the next item, if there is one, without counting it as under way."""
        with self._changed:
            return self._take(next(iter(self._items))) if self._items else None

    def _take(self, owner: str) -> Item:
        """Takes the first item of an owner, who then stands behind all others."""
        items = self._items.pop(owner)
        item = items.popleft()
        if items:
            self._items[owner] = items
        self._changed.notify_all()  # a queue that is closed may be empty now
        return item

    def done(self, item: Item) -> None:
        """Ends an item that `get` gave out; its owner may begin another."""
        with self._changed:
            self._under_way[self._owner_of(item)] -= 1
            self._under_way = +self._under_way  # owners without work are forgotten
            self._changed.notify_all()

    def close(self) -> None:
        """Lets `get` return None once nothing waits any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


QueuedCall = tuple[str, Callable[[], Any], TimedFuture[Any]]
"""An owner, a piece of its work, and the future of the result."""


class FairPool:
    """Threads that do the work of each owner in turn. An owner uses at most `each` of them at a time.

    A future can be cancelled at any time: work that waits is dropped, and work that is under way is told to stop.
    """

    def __init__(self, threads: int, name: str, each: int) -> None:
        self._waiting: FairQueue[QueuedCall] = FairQueue(lambda task: task[0], each)
        self._threads = [
            threading.Thread(target=self._serve, name=f"{name}-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, owner: str, work: Callable[[], Result]) -> TimedFuture[Result]:
        """Queues a piece of work and returns its future."""
        future: TimedFuture[Result] = TimedFuture()
        self._waiting.put((owner, work, future))
        return future

    def close(self) -> None:
        """Cancels what waits, and ends the threads after the work they have."""
        while task := self._waiting.take():
            task[2].cancel()
        self._waiting.close()

    def finish(self) -> None:
        """Ends the threads after all work, and waits for them."""
        self._waiting.close()
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while task := self._waiting.get():
            _, work, future = task
            try:
                if not future.cancelled():
                    with working([future]):
                        future.settle(work())
            except BaseException as error:  # the caller waits for the future and has to get any error
                future.settle(error)
            self._waiting.done(task)
