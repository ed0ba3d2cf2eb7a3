"""The paper's figures: spot checks against the printed tables, and what must hold among them."""

import hashlib
import json
from typing import Any

import pytest

from alimark.errors import AlimarkError
from alimark.lab.bench import paper

PRINTED: list[tuple[str, str, str, str, str, str, dict[str, Any], float]] = [
    ("main", "EXP", "opt-1.3b", "booksum", "none", "tpr@0.01", {}, 0.491),
    ("main", "k-SemStamp", "opt-1.3b", "c4", "none", "tpr@0.01", {}, 0.233),
    ("main", "SimMark", "opt-1.3b", "nq", "dipper", "tpr@0.05", {}, 0.503),
    ("main", "SynthID", "qwen3-1.7b", "booksum", "parrot", "auroc", {}, 0.868),
    ("main", "AliMark", "qwen3-1.7b", "c4", "dipper", "tpr@0.05", {}, 0.562),
    ("main", "AliMark", "gemma-3-1b-pt", "booksum", "parrot", "tpr@0.05", {}, 0.976),
    ("main", "AliMark", "gemma-3-1b-pt", "c4", "gpt-3.5", "tpr@0.05", {}, 0.509),
    ("embedder", "AliMark", "opt-1.3b", "c4", "gpt-3.5", "tpr@0.05", {"embedder": "all-distilroberta-v1"}, 0.418),
    ("candidates", "AliMark", "opt-1.3b", "booksum", "dipper", "tpr@0.05", {"candidates": 32}, 0.527),
    ("restructure", "AliMark", "opt-1.3b", "c4", "gpt-3.5", "tpr@0.05", {"restructure": "multi-step"}, 0.434),
    ("sentences", "AliMark", "opt-1.3b", "c4", "dipper", "tpr@0.05", {"sentences": 8}, 0.44),
    ("runtime", "AliMark", "", "", "none", "seconds", {"module": "all", "n": 128}, 0.34),
    ("perplexity", "AliMark", "qwen3-1.7b", "booksum", "none", "perplexity_spread", {"block_size": 4}, 3.0),
]


def printed_value(table: str, method: str, llm: str, data: str, attack: str, metric: str, **grid: Any) -> float | None:
    """One figure of a table; None if the table has none for this."""
    wanted = {"method": method, "llm": llm, "data": data, "attack": attack, "metric": metric, "grid": grid}
    return next((figure["value"] for figure in paper.values(table) if wanted.items() <= figure.items()), None)


@pytest.mark.parametrize(("table", "method", "llm", "data", "attack", "metric", "grid", "printed"), PRINTED)
def test_figures_are_as_printed(
    table: str, method: str, llm: str, data: str, attack: str, metric: str, grid: dict[str, Any], printed: float
) -> None:
    assert printed_value(table, method, llm, data, attack, metric, **grid) == printed


class TestWhole:
    def test_no_figure_changes(self) -> None:
        """The digest of all figures; one that is corrected changes it."""
        content = json.dumps({name: paper.values(name) for name in paper.tables()}, sort_keys=True)
        assert hashlib.sha256(content.encode()).hexdigest().startswith("53c804c36cff57fa")


class TestMissing:
    def test_none_where_the_paper_has_no_number(self) -> None:
        assert printed_value("main", "EXP", "gemma-3-1b-pt", "c4", "none", "auroc") is None
        assert printed_value("main", "AliMark", "opt-1.3b", "c4", "delete 0.3", "tpr@0.05") is None
        assert printed_value("candidates", "AliMark", "opt-1.3b", "c4", "none", "tpr@0.05") is None

    def test_an_unknown_table_is_named(self) -> None:
        with pytest.raises(AlimarkError, match=r"'probing'; the tables are main, embedder"):
            paper.values("probing")
