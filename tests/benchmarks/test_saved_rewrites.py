"""benchmarks/saved_rewrites.py: rewrites that were saved give the same text again, and serve keys of every kind."""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import pytest

import saved_rewrites
from alimark.core.frozen.text.splitting import splitter
from alimark.core.rewriting.settings import Original, RewriteSettings
from alimark.errors import AlimarkError
from rewriters import EMBEDDER, KEY, PAGE, STORY, Rewriter, marked, reworded
from single_text import rewrite


def test_saved_rewrites_give_the_same_text_again(tmp_path: Path) -> None:
    path = tmp_path / "rewrites.jsonl"
    made = marked(saved_rewrites.RecordingLLM(Rewriter(), path), seed=5)
    assert made.text == marked(seed=5).text
    assert marked(saved_rewrites.SavedLLM(path), seed=5).text == made.text
    # Another seed asks the same questions in the first wave, which is enough to recognise them.
    again = marked(saved_rewrites.SavedLLM(path), seed=6, waves=1)
    assert sum(sentence.outcome == "rewritten" for sentence in again.rewritten) >= 8
    # More rewrites than were saved: the rest is blank.
    more = rewrite(STORY, KEY, EMBEDDER, saved_rewrites.SavedLLM(path), RewriteSettings(32, waves=1), seed=5)
    assert more.rejected["blank"] >= 16 * 12
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(AlimarkError, match="no rewrites"):
        saved_rewrites.SavedLLM(tmp_path / "empty.jsonl")


def test_the_table_has_a_row_for_each_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rewrites.jsonl"
    marked(saved_rewrites.RecordingLLM(Rewriter(), path), seed=5, waves=1)
    kinds = ["hard, 16 starts", "version 3", "version 3, follows conversations"]
    options = argparse.Namespace(rewrites=path, compare=2, kinds=kinds)
    saved_rewrites.compare([Original(STORY, 5)], saved_rewrites.SavedLLM(path), EMBEDDER, RewriteSettings(), options)
    table = capsys.readouterr().out
    assert "1 texts x 2 keys" in table
    assert [line.split(" | ")[0] for line in table.splitlines()[4:]] == [f"| {kind}" for kind in kinds]


def test_options_name_the_key() -> None:
    parser = argparse.ArgumentParser()
    saved_rewrites.add_options(parser, decision="soft")
    assert saved_rewrites.key_parameters(parser.parse_args([])) == {"decision": "soft"}
    options = parser.parse_args("--block-size 32 --offsets 16 --span 0 --run 2 3".split())
    given = {"decision": "soft", "block_size": 32, "offsets": 16, "span": 0, "run": [2, 3]}
    assert saved_rewrites.key_parameters(options) == given


def test_paraphrases_of_other_programs_serve_as_rewrites(tmp_path: Path) -> None:
    files = []
    for number in range(4):
        changed = " ".join(reworded(sentence, random.Random(number)) for sentence in splitter().sentences(STORY))
        rows = [(STORY, changed), ("Too short.", "It is short."), (PAGE, "Of another length.")]
        path = tmp_path / f"{number}.jsonl"
        path.write_text("".join(json.dumps({"original": a, "paraphrase": b}) + "\n" for a, b in rows))
        files.append(path)
    llm = saved_rewrites.PairsLLM(files, 6)
    assert llm.texts == [STORY]
    rewriting = marked(llm, candidates=4, waves=1)
    assert sum(sentence.outcome == "rewritten" for sentence in rewriting.rewritten) >= 6
    assert sum(rewriting.matches) > sum(sentence.matches_before for sentence in rewriting.rewritten)
