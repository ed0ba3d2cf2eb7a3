"""Null tables: those shipped against those computed, the cache, interpolation, and the public code's format."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from alimark.core.detection.stats import null_tables
from alimark.errors import AlimarkError


class TestNullTables:
    def test_shipped_tables_are_what_the_command_computes(self) -> None:
        table = null_tables.null_table(8, 200)
        again = null_tables.monte_carlo(8, [1, 5, 12, 40], pairs=3000)
        for n, mean, std in zip(again.lengths, again.mean, again.std, strict=True):
            assert table.mean[n - 1] == pytest.approx(mean, abs=4 * std / math.sqrt(1000))
            assert table.std[n - 1] == pytest.approx(std, rel=0.12)
        assert table.std[11] == pytest.approx(0.048, abs=0.002)  # what the method's notes give

    def test_one_sentence_is_binomial(self) -> None:
        """At one block the rate is Binomial(M, 1/2) / M, since a deletion and an insertion cost more than any match."""
        for m in (2, 4, 8, 16):
            table = null_tables.null_table(m, 200)
            assert table.mean[0] == pytest.approx(0.5, abs=0.02)
            assert table.std[0] == pytest.approx(0.5 / math.sqrt(m), rel=0.05)

    def test_other_sizes_and_lengths_are_computed_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ALIMARK_HOME", str(tmp_path))
        null_tables.null_table.cache_clear()
        table = null_tables.null_table(5, 100)
        assert table.lengths[-1] >= 100
        stored = list((tmp_path / "null").iterdir())
        assert len(stored) == 1
        stored[0].write_text("{broken")
        null_tables.null_table.cache_clear()
        again = null_tables.null_table(5, 100)
        assert np.array_equal(again.mean, table.mean)
        null_tables.null_table.cache_clear()

    def test_interpolation_keeps_the_tabled_values(self) -> None:
        table = null_tables.null_table(8, 2000)
        mean, std = table.upto(2000)
        assert mean[12] == pytest.approx(table.mean[11])
        assert std[200] == pytest.approx(table.std[199])
        assert np.all(np.diff(std[10:]) < 0.02)

    def test_reference_table(self, tmp_path: Path) -> None:
        path = tmp_path / "table.json"
        path.write_text(json.dumps({"1": {"mean": 0.5, "std": 0.2}, "2": {"mean": 0.4, "std": 0.1}}))
        rule = null_tables.reference_rule(8, 6, table=path)
        assert rule.by_longer
        assert rule.mean[1:5].tolist() == [0.5, 0.4, 0.4, 0.4]
        assert rule.std[1:5].tolist() == [0.2, 0.1, 0.1, 0.1]
        computed = null_tables.reference_rule(8, 12)
        # Pooled over all lengths, the deviation at 12 is nearly twice that of length 12 alone.
        assert computed.std[12] / null_tables.null_table(8, 200).std[11] == pytest.approx(1.8, abs=0.15)
        path.write_text("[]")
        with pytest.raises(AlimarkError, match="is not a table"):
            null_tables.read_reference(path)

    def test_prefix_lengths_are_whole_blocks(self) -> None:
        least, most = null_tables.prefix_lengths(2000)
        assert (least[13], most[13], least[1], most[1]) == (7, 20, 1, 2)
        assert least.tolist() == [max(1, (n + 1) // 2) for n in range(2001)]
        assert most.tolist() == [max(1, (3 * n + 1) // 2) for n in range(2001)]
        with pytest.raises(AlimarkError, match="alpha"):
            null_tables.prefix_lengths(5, alpha=1.2)


def test_prefix_lengths_are_those_of_the_decimal_numbers() -> None:
    """0.28 of 25 sentences are 7 blocks; in floating point 0.28 * 25 is a little more, and its ceiling is 8."""
    least, most = null_tables.prefix_lengths(25, 0.28, 1.16)
    assert least[25] == 7
    assert most[25] == 29
    for alpha in (0.07, 0.14, 0.29, 0.55, 0.57, 0.58, 1.0):
        least, most = null_tables.prefix_lengths(200, alpha, 2 + alpha)
        hundredths = round(100 * alpha)
        assert least.tolist() == [max(1, -(-hundredths * n // 100)) for n in range(201)]
        assert most.tolist() == [max(1, -(-(200 + hundredths) * n // 100)) for n in range(201)]
