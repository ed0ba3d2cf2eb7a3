"""benchmarks/chat_prompts.py and letters.py: their data, and what they count."""

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

import chat_prompts
import letters


def test_a_hundred_prompts_of_five_classes() -> None:
    prompts = chat_prompts.prompts("chat", None)
    assert set(Counter(kind for _, kind, _ in prompts).values()) == {20}
    assert len({text for _, _, text in prompts}) == len({name for name, _, _ in prompts}) == 100
    assert len(chat_prompts.prompts("chat", 2)) == 10
    forms = chat_prompts.prompts("form", None)
    assert set(Counter(kind for _, kind, _ in forms).values()) == {5}
    assert len({kind for _, kind, _ in forms}) == 13


def answer(way: str, number: int, tokens: int, p_value: float, text: str = "Yes.") -> dict[str, Any]:
    return {
        "id": f"code-{number}/{way}", "class": "code", "way": way, "text": text, "finish": "stop", "tokens": tokens,
        "sentences": 12, "p_value": p_value, "found": p_value <= 0.01, "needed": 5, "words": 9, "words_marked": 4,
        "too_short": False,
    }  # fmt: skip


def test_the_report_on_chat_prompts() -> None:
    code = "So:\n\n```python\nx = 1\n```\n"
    records = [answer("marked", i, 100 + i, 0.001 * i, code) for i in range(20)]
    records += [answer("plain", i, 110 + i, 0.5, code.replace("= 1", "=")) for i in range(20)]
    report = "\n".join(chat_prompts.report(records, 10**9))
    assert "| code | 20 | 110 | 120 | -10 [-10, -10] |" in report
    assert "| texts with fences that all close | 20 of 20 | 20 of 20 |" in report
    assert "| Python blocks that parse | 20 of 20 | 0 of 20 |" in report
    assert "| 10 to 19 | 20 | 11 | |" in report
    assert "| all | 20 | 11 | 0 |" in report
    assert "| `too_short` false | 20 | 11 |" in report
    assert "| code | 20 | 11 | 180 | 44% |" in report


def test_what_a_letter_has_to_keep() -> None:
    assert len(letters.letters()) == 10
    before = ["We paid 12.50 euros to Mr Hale.", "It was not much."]
    kept = {"original": " ".join(before), "sentences_before": before}
    same = ["To Mr Hale we paid 12.50 euros.", "That was not a lot."]
    assert set(letters.kept(kept | {"text": " ".join(same), "sentences": same}).values()) == {True}
    other = ["To Mr Hill we paid 12.60 euros.", "That was a lot."]
    lost = letters.kept(kept | {"text": " ".join(other), "sentences": other})
    assert (lost["figures"], lost["names"], lost["negations"], lost["lines"]) == (False, False, False, True)
