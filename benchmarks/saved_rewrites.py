"""Saves the rewrites that a chat model makes of sentences, and marks the same texts with them again under many keys.

benchmarks/letters.py and benchmarks/rewriting.py use this: `--save-rewrites FILE` stores every answer of the model,
`--rewrites FILE` takes the answers from there instead of asking a model, and `--compare N` then marks and detects every text
under N keys of each kind of `KINDS`. Rewrites that are to serve many keys are best made with `--waves 1`: in a second wave the
model rewrites what the first key found best, and other keys do not gain by that.
"""

from __future__ import annotations

import argparse
import hashlib
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from alimark import AliMark, Key, load_llm
from alimark.audit.corpora.cache import RememberingEmbedder
from alimark.core._util.jsonl import JsonlWriter, read_jsonl
from alimark.core.embedding.base import Embedder
from alimark.core.frozen.text.splitting import splitter
from alimark.core.llm.base import LLM, Draw, Request, Sampling, StopCondition
from alimark.core.rewriting.api import rewrite_many
from alimark.core.rewriting.settings import WAYS, Original, RewriteSettings
from alimark.errors import AlimarkError

FPR = 0.01
_CACHE_MEGABYTES = 256

KINDS: dict[str, dict[str, Any]] = {
    "hard": {"decision": "hard"},
    "hard, 64 starts": {"decision": "hard", "offsets": 64},
    "hard, blocks of 16": {"decision": "hard", "block_size": 16},
    "hard, blocks of 16, 16 starts": {"decision": "hard", "block_size": 16, "offsets": 16},
    "hard, blocks of 16, 64 starts": {"decision": "hard", "block_size": 16, "offsets": 64},
    "version 3": {},
    "version 3, 16 starts": {"offsets": 16},
    "version 3, 64 starts": {"offsets": 64},
    "hard, blocks of 32, 64 starts": {"decision": "hard", "block_size": 32, "offsets": 64},
    "version 3, run 1": {"run": [1]},
    "version 3, run 1, 64 starts": {"run": [1], "offsets": 64},
    "version 3, follows conversations": {"starts": "conversation"},
    "version 3, whole space": {"span": 0},
    "version 3, whole space, 64 starts": {"span": 0, "offsets": 64},
    "version 3, whole space, run 1, 64 starts": {"span": 0, "run": [1], "offsets": 64},
    "hard, 16 starts": {"decision": "hard", "offsets": 16},
}
"""The kinds of keys that are compared, with their parameters of `Key.generate`."""


class RecordingLLM(LLM):
    """A model whose answers are appended to a JSONL file, one line for each request."""

    def __init__(self, llm: LLM, path: Path) -> None:
        self._llm, self._path, self._writing = llm, path, threading.Lock()

    @property
    def name(self) -> str:
        return self._llm.name

    @property
    def max_concurrency(self) -> int:
        return self._llm.max_concurrency

    @property
    def preferred_batch(self) -> int:
        return self._llm.preferred_batch

    @property
    def limits(self) -> tuple[str, ...]:
        return self._llm.limits

    def draw(self, requests: Sequence[Request], sampling: Sampling, stop: StopCondition, /) -> list[list[Draw]]:
        answers = self._llm.draw(requests, sampling, stop)
        with self._writing, JsonlWriter(self._path) as writer:
            for request, draws in zip(requests, answers, strict=True):
                if str(request.seed) not in writer.done:
                    lines = [[draw.text, draw.tokens, draw.ended] for draw in draws]
                    asked = request.messages[-1].content
                    writer.write({"id": str(request.seed), "llm": self.name, "asked": asked, "draws": lines})
        return answers


class SavedLLM(LLM):
    """Answers with what a `RecordingLLM` saved; where fewer answers were saved than are asked for, the others are blank.

    A request is recognised by its question, since keys that read a text in different ways may number its sentences
    differently. In a later wave, whose questions depend on the key, it is recognised by its seed.
    """

    max_concurrency, preferred_batch = 1, 64

    def __init__(self, path: Path) -> None:
        self._name = ""
        self._by_seed: dict[str, list[Draw]] = {}
        self._by_question: dict[str, list[Draw]] = {}
        for _, record in read_jsonl(path):
            if isinstance(record, Exception):
                raise record
            draws = [Draw(*fields) for fields in record["draws"]]
            self._name = record["llm"]
            self._by_seed[record["id"]] = self._by_question[record["asked"]] = draws
        if not self._by_seed:
            raise AlimarkError(f"{path} holds no rewrites; make some with --save-rewrites")

    @property
    def name(self) -> str:
        return self._name

    def draw(self, requests: Sequence[Request], sampling: Sampling, stop: StopCondition, /) -> list[list[Draw]]:
        answers = []
        for request in requests:
            saved = self._by_question.get(request.messages[-1].content, self._by_seed.get(str(request.seed), []))
            draws = saved[: request.count]
            answers.append([*draws, *[Draw("", 0, "model")] * (request.count - len(draws))])
        return answers


class PairsLLM(LLM):
    """Answers with paraphrases that other programs made of the same texts, one from each file and instruction.

    Args:
        paths: JSONL files with the fields `original` and `paraphrase`, at most one for each instruction (`WAYS`).
        least: The least number of sentences of a text. Only texts are used whose paraphrases all have as many as they have.
    """

    max_concurrency, preferred_batch, name = 1, 64, "paraphrases"

    def __init__(self, paths: Sequence[Path], least: int) -> None:
        cutter, files = splitter(), [_paraphrases(path) for path in paths]
        self.texts: list[str] = []
        self._rewrites: dict[str, list[str]] = {}
        for text in files[0]:
            sentences = cutter.units(text)
            rewrites = [cutter.units(paraphrases.get(text, "")) for paraphrases in files]
            if len(sentences) >= least and all(len(units) == len(sentences) for units in rewrites):
                self.texts.append(text)
                self._rewrites |= dict(zip(sentences, map(list, zip(*rewrites, strict=True)), strict=True))

    def draw(self, requests: Sequence[Request], sampling: Sampling, stop: StopCondition, /) -> list[list[Draw]]:
        return [self._answer(request.messages[-1].content, request.count) for request in requests]

    def _answer(self, question: str, count: int) -> list[Draw]:
        way = next(number for number, instruction in enumerate(WAYS) if instruction in question)
        answers = self._rewrites.get(question.rsplit("\n\n", 1)[1], [])[way : way + 1]
        return [Draw(text, 0, "model") for text in [*answers, *[""] * count][:count]]


def _paraphrases(path: Path) -> dict[str, str]:
    records = [record for _, record in read_jsonl(path) if isinstance(record, dict)]
    return {record["original"]: record["paraphrase"] for record in records}


def add_options(parser: argparse.ArgumentParser, *, decision: str) -> None:
    """Adds the options for the key and for saved rewrites."""
    parser.add_argument("--decision", choices=("hard", "soft"), default=decision)
    parser.add_argument("--block-size", type=int, help="secret bits for each block")
    parser.add_argument("--offsets", type=int, help="secret starts of the key")
    parser.add_argument("--starts", choices=("text", "conversation"))
    parser.add_argument("--span", type=int, help="directions of the key's vectors; 0: the whole space")
    parser.add_argument("--run", type=int, nargs="+", help="sentences that share a block")
    parser.add_argument("--save-rewrites", type=Path, help="JSONL to append all answers of the model to")
    parser.add_argument("--rewrites", type=Path, help="saved answers, which are used instead of a model")
    parser.add_argument("--compare", type=int, metavar="N", help="with --rewrites: N keys of each kind, in a table")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), help="those of --compare")


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options of the command line, of which --compare needs rewrites that exist."""
    options = parser.parse_args()
    if options.compare and not options.rewrites and not getattr(options, "pairs", None):
        parser.error("--compare needs --rewrites")
    return options


def key_parameters(options: argparse.Namespace) -> dict[str, Any]:
    """The parameters of `Key.generate` that the options ask for."""
    given = {name: getattr(options, name) for name in ("decision", "block_size", "offsets", "starts", "span", "run")}
    return {name: value for name, value in given.items() if value is not None}


def load_model(options: argparse.Namespace, **model_options: Any) -> LLM:
    """The model that the options name: one that is asked, and recorded if that is wanted, or one that was saved."""
    if options.rewrites:
        return SavedLLM(options.rewrites)
    llm = load_llm(options.llm, **model_options)
    return RecordingLLM(llm, options.save_rewrites) if options.save_rewrites else llm


def p_values(
    originals: Sequence[Original], llm: LLM, embedder: Embedder, settings: RewriteSettings, key: Key
) -> list[tuple[float, float]]:
    """The p-value of each text once it is marked under the key, and its mean cosine to the original."""
    measured = []
    mark = AliMark(key, embedder=embedder)
    for _, rewriting in rewrite_many(originals, key, embedder, llm, settings):
        if isinstance(rewriting, AlimarkError):
            raise rewriting
        measured.append((mark.detect(rewriting.text).p_value, float(np.mean(rewriting.cosines))))
    return measured


def compare(
    originals: Sequence[Original],
    llm: LLM,
    embedder: Embedder,
    settings: RewriteSettings,
    options: argparse.Namespace,
) -> None:
    """Marks every text with rewrites that exist under many keys of each kind, and prints the share that is found."""
    cached = RememberingEmbedder(embedder, _CACHE_MEGABYTES)
    settings = replace(settings, waves=1)
    counts = f"{settings.candidates} rewrites a sentence, {len(originals)} texts x {options.compare} keys"
    print(f"{llm.name}, {embedder.name}, {counts}")
    print("\n| key | found at p <= 0.01 | at p <= 0.05 | median p | mean cosine |\n| --- | ---: | ---: | ---: | ---: |")
    for kind in options.kinds:
        measured: list[tuple[float, float]] = []
        for number in range(options.compare):
            secret = hashlib.sha256(f"benchmarks/saved_rewrites/{number}".encode()).digest()
            key = Key.generate(embedder=embedder, secret=secret, **KINDS[kind])
            measured += p_values(originals, llm, cached, settings, key)
        values, cosines = np.array(measured).T
        print(
            f"| {kind} | {(values <= FPR).mean():.0%} | {(values <= 0.05).mean():.0%} | {np.median(values):.2g} "
            f"| {cosines.mean():.2f} |",
            flush=True,
        )
