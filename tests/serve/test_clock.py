"""The system clock may jump: keys stay usable and in order, and no record is deleted because of it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from alimark.core.keys.key import Key
from alimark.errors import AlimarkError
from alimark.serve.database import Store
from alimark.serve.records import Record, RecordLog
from alimark.serve.ring import Ring
from alimark.testing import StandInEmbedder

DAY = 86400.0


class Clock:
    """Replaces `time.time`."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "time", clock)
    return clock


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(f"sqlite:///{tmp_path / 'alimark.db'}")
    yield store
    store.close()


def key(number: int) -> Key:
    return Key.generate(embedder=StandInEmbedder(), secret=bytes([number]) * 32)


def test_keys_work_after_the_clock_was_set_back(store: Store, tmp_path: Path, clock: Clock) -> None:
    ring = Ring(tmp_path / "keys", store)
    first = ring.add(key(1))
    clock.now -= 2
    assert ring.marking("", "m").id == first.id
    second = ring.rotate(first.id, StandInEmbedder())
    clock.now -= 2
    assert ring.marking("", "m").id == second.id
    assert {key.id for key in ring.detecting("")} == {first.id, second.id}


def test_the_newest_key_marks_whatever_the_clock_said(store: Store, tmp_path: Path, clock: Clock) -> None:
    ring = Ring(tmp_path / "keys", store)
    labels = []
    for number, jump in ((1, 0.0), (2, 4000 * DAY), (3, -4000 * DAY)):
        clock.now += jump
        labels.append(ring.add(key(number)))
        assert ring.marking("", "m").id == labels[-1].id
    assert [label.id for label in ring.all()] == [label.id for label in labels]
    assert [label.id for label in ring.in_use()] == [labels[-1].id]
    assert [label.number for label in Ring(tmp_path / "keys", store).all()] == [1, 2, 3]


def test_an_activated_key_marks_whatever_the_clock_said(store: Store, tmp_path: Path, clock: Clock) -> None:
    ring = Ring(tmp_path / "keys", store)
    first = ring.add(key(1))
    clock.now += 4000 * DAY
    second = ring.add(key(2))
    assert ring.marking("", "m").id == second.id
    clock.now -= 4000 * DAY
    ring.activate(first.id)
    assert ring.marking("", "m").id == first.id


def test_a_key_with_a_later_start_waits_for_it(store: Store, tmp_path: Path, clock: Clock) -> None:
    ring = Ring(tmp_path / "keys", store)
    first, later = ring.add(key(1)), ring.add(key(2), starts=clock.now + DAY)
    assert ring.marking("", "m").id == first.id
    clock.now += 2 * DAY
    assert ring.marking("", "m").id == later.id


def write(store: Store, log: RecordLog, at: float) -> None:
    store.do(log.writing([Record("detect", "tk1", "", "ak1", "00", 1.0, at=at)]))


def count(log: RecordLog) -> int:
    return sum(page.count("\n") for page in log.export())


def test_retention_refuses_a_clock_that_jumped(store: Store, clock: Clock) -> None:
    log = RecordLog(store)
    write(store, log, clock.now - 40 * DAY)
    write(store, log, clock.now)
    assert log.prune(30) == 1
    right, clock.now = clock.now, clock.now + 3650 * DAY
    write(store, log, clock.now)
    with pytest.raises(AlimarkError, match="clock"):
        log.prune(30)
    clock.now += 3600
    with pytest.raises(AlimarkError, match="clock"):
        log.prune(30)
    assert count(log) == 2
    clock.now = right + 10 * DAY
    assert log.prune(30) == 0
    clock.now += 3650 * DAY
    assert log.prune(30, clock_is_right=True) == 1
    assert count(log) == 1


def test_the_first_deletion_compares_the_clock_with_the_records(store: Store, clock: Clock) -> None:
    """A database of an earlier release does not say when its clock was read last."""
    log = RecordLog(store)
    write(store, log, clock.now)
    clock.now += 3650 * DAY
    with pytest.raises(AlimarkError, match="clock"):
        log.prune(30)
    assert count(log) == 1
