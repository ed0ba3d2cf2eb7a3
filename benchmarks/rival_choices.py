"""The choices that the descriptions of SAMark and PostMark leave open, tried on prompts that are not scored elsewhere.

    python benchmarks/rival_choices.py samark   --data booksum.jsonl --texts 8 --candidates 16 --output samark.jsonl
    python benchmarks/rival_choices.py postmark --data booksum.jsonl c4.jsonl nq.jsonl --texts 24

`samark` generates texts (it resumes) and prints how well they are found with signs that the detector knows and with signs
that it infers, by the z-score and by the mean score. `postmark` prints how many words the table gives again after an attack,
by kind of point, and which share of the words is present, by threshold; the words are inserted without a language model,
between the words of human texts. Records have the fields "prompt" and "natural_text", or "text".
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from alimark.core._util.arrays import Floats
from alimark.core._util.jsonl import JsonlWriter, read_jsonl
from alimark.core.embedding.base import Embedder
from alimark.core.embedding.loading import load_embedder
from alimark.core.frozen.text.splitting import splitter
from alimark.core.generation.api import GenerationSettings, Prompt
from alimark.core.keys.fitted import Fitted
from alimark.core.keys.key import Key
from alimark.core.llm import load_llm
from alimark.lab.attacks import Target, load_attack
from alimark.lab.bench.metrics import auroc
from alimark.lab.rivals._word_table import unit_rows
from alimark.lab.rivals.postmark import PostMark
from alimark.lab.rivals.samark import AnchorRule, SAMark, scores_of

TUNING = 111
"""Records below this number are for tuning."""
SENTENCES = 12
ATTACKS: dict[str, dict[str, Any]] = {"delete": {"rate": 0.3}, "reorder": {"rate": 0.5}, "synonyms": {"rate": 1.0}}


def secret(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest()


def records(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        for _, record in islice(read_jsonl(path), TUNING):
            assert isinstance(record, dict), record
            yield record


def human_text(record: dict[str, Any]) -> str:
    text = record.get("text") or f"{record['prompt']} {record['natural_text']}"
    return " ".join(splitter().units(text)[:SENTENCES])


def attacked(texts: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    yield "none", list(texts)
    for name, settings in ATTACKS.items():
        results = dict(load_attack(name, **settings).run([Target(text, 1) for text in texts]))
        yield name, [results[i].text for i in range(len(texts))]


# SAMark


def samark(args: argparse.Namespace) -> None:
    rows, embedder = list(records(args.data)), load_embedder(args.embedder)
    keys = [Key.generate(scheme="samark", embedder=embedder, secret=secret(i)) for i in range(args.texts)]
    with JsonlWriter(args.output) as writer:
        left = [i for i in range(args.texts) if str(i) not in writer.done]
        prompts = [Prompt(rows[i]["prompt"], i, keys[i]) for i in left]
        if prompts:
            mark, settings = SAMark(keys[0], embedder=embedder), GenerationSettings(SENTENCES, args.candidates)
            for place, result in mark.generate_many(prompts, load_llm(args.llm), settings):
                if isinstance(result, Exception):
                    raise result
                writer.write(result.record(str(left[place])))
    texts = {record["id"]: record["text"] for _, record in read_jsonl(args.output) if isinstance(record, dict)}
    marked = [texts[str(i)] for i in range(args.texts)]
    people = [human_text(row) for row in rows[args.texts :]]
    unmarked = [vectors_of(text, embedder) for text in people]
    print("signs, statistic: AUROC against human texts under the same keys, share at p <= 0.01, by attack")
    for name, some in attacked(marked):
        vectors = [vectors_of(text, embedder) for text in some]
        for signs in ("key", "text"):
            for kind in (0, 1):
                print(name, signs, ("z", "mean")[kind], *_found(keys, vectors, unmarked, signs, kind))


def vectors_of(text: str, embedder: Embedder) -> Floats:
    return unit_rows(embedder.embed(splitter().units(text)))


def _found(
    keys: Sequence[Key], marked: Sequence[Floats], unmarked: Sequence[Floats], signs: str, kind: int
) -> tuple[str, str]:
    high, low, p_values = [], [], []
    for key, vectors in zip(keys, marked, strict=True):
        rule, slope = AnchorRule(key), key.parameters["slope"]
        known = rule.signs if signs == "key" else None
        directions = rule.directions(vectors.shape[1])
        high.append(float(scores_of(vectors @ directions.T, known, slope)[kind]))
        low += [float(scores_of(other @ directions.T, known, slope)[kind]) for other in unmarked]
        null = [
            scores_of(vectors @ rule.null_directions(chunk, vectors.shape[1]).transpose(0, 2, 1), known, slope)[kind]
            for chunk in range(4)
        ]
        p_values.append((1 + (np.concatenate(null) >= high[-1]).sum()) / 1025)
    return f"{100 * auroc(high, low):.1f}", f"{100 * np.mean(np.array(p_values) <= 0.01):.0f}"


# PostMark


def postmark(args: argparse.Namespace) -> None:
    embedder = load_embedder(args.embedder)
    people = [human_text(row) for row in records(args.data)]
    texts = people[: args.texts]
    fitted = PostMark.fit(people[args.texts :], embedder)
    print(f"{len(fitted.origin['words'])} words, {fitted.origin['excerpts']} excerpts")
    _stability(texts, fitted, embedder)
    for pool in (3, 1):
        _presence(texts, fitted, embedder, pool)


def _stability(texts: Sequence[str], fitted: Fitted, embedder: Embedder) -> None:
    """Of the 90 points that are closest to a text, how many are among the closest 90 after an attack."""
    mean, components = fitted.arrays["mean"], fitted.arrays["components"]
    random = np.random.default_rng(0)
    tables = {
        "points like texts": mean + random.normal(size=(3000, len(components))) @ components,
        "points in all directions": random.normal(size=(3000, len(mean))),
    }
    for name, points in tables.items():
        table = unit_rows(points)
        for kind in ("mean of the sentences", "whole text"):
            before = _nearest(texts, table, embedder, kind)
            print(name, kind, end=":")
            for attack, some in attacked(texts):
                after = _nearest(some, table, embedder, kind)
                kept = [len(set(a) & set(b)) / len(a) for a, b in zip(before, after, strict=True)]
                print(f" {attack} {np.mean(kept):.2f}", end="")
            print()


def _nearest(texts: Sequence[str], table: Floats, embedder: Embedder, kind: str) -> list[list[int]]:
    if kind == "whole text":
        vectors = unit_rows(embedder.embed(list(texts)))
    else:
        vectors = np.array([vectors_of(text, embedder).mean(axis=0) for text in texts])
    return [np.argsort(-(table @ vector))[:90].tolist() for vector in vectors]


def _presence(texts: Sequence[str], fitted: Fitted, embedder: Embedder, pool: int) -> None:
    """The mean share of words that are present and the share of texts found, for unmarked and for marked texts."""

    def marks(**parameters: Any) -> list[PostMark]:
        keys = [
            Key.generate(scheme="postmark", embedder=embedder, fitted=fitted, secret=secret(i), pool=pool, **parameters)
            for i in range(len(texts))
        ]
        return [PostMark(key, embedder=embedder) for key in keys]

    marked = [spread(text, mark.words(text)) for mark, text in zip(marks(), texts, strict=True)]
    versions = [("unmarked", list(texts)), *attacked(marked)]
    for threshold in (0.6, 0.7, 0.8, 1.0):
        print(f"pool {pool}, threshold {threshold}", end=":")
        for name, some in versions:
            pairs = zip(marks(threshold=threshold), some, strict=True)
            detections = [mark.detect(text, draws=300) for mark, text in pairs]
            share = np.mean([detection.raw for detection in detections])
            found = np.mean([detection.p_value <= 0.01 for detection in detections])
            print(f" {name} {share:.2f} ({100 * found:.0f}%)", end="")
        print(flush=True)


def spread(text: str, words: Sequence[str]) -> str:
    """The text with the words put in between its own at equal distances: the easiest insertion there is."""
    parts = text.split(" ")
    places = np.linspace(1, len(parts) - 1, len(words)).astype(int)
    for place, word in sorted(zip(places.tolist(), words, strict=True), reverse=True):
        parts.insert(place, word)
    return " ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=["samark", "postmark"])
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--candidates", type=int, default=64)
    parser.add_argument("--output", type=Path, default=Path("samark.jsonl"))
    parser.add_argument("--embedder", default="all-MiniLM-L6-v2")
    parser.add_argument("--llm", default="smollm2-135m")
    args = parser.parse_args()
    {"samark": samark, "postmark": postmark}[args.method](args)


if __name__ == "__main__":
    main()
