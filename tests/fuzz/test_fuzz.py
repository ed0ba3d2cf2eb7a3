"""The corpus of `make fuzz`, which holds every case that was found, and some mutations of it with a fixed seed."""

import pytest

import fuzz

MUTATIONS = {"keys": 150, "jsonl": 20, "recipes": 60, "documents": 0, "parquet": 60, "http": 30, "texts": 30}
"""Inputs beside the corpus. A document is read in a process of its own, which takes longer."""


@pytest.mark.parametrize("target", MUTATIONS)
def test_no_input_crashes_or_hangs(target: str) -> None:
    needed = {"http": ["fastapi", "httpx"], "documents": ["selectolax", "pypdfium2"], "parquet": ["pyarrow"]}
    for library in needed.get(target, []):
        pytest.importorskip(library)
    corpus = fuzz.seeds_of(target)
    result = fuzz.fuzz(target, inputs=len(corpus) + MUTATIONS[target])
    assert (result.crashes, result.hangs) == (0, 0), result.report
    assert result.inputs == len(corpus) + MUTATIONS[target]


def test_a_crash_and_a_hang_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(data: bytes) -> None:
        raise KeyError(data)

    result = fuzz.Result()
    assert not fuzz.attempt(crash, b"x", result)
    monkeypatch.setattr(fuzz, "HANG_SECONDS", 1e-9)
    assert not fuzz.attempt(lambda data: None, b"x", result)
    assert (result.inputs, result.crashes, result.hangs) == (2, 1, 1)
