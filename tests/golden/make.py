"""Golden files: key files, fixed texts, and every number that detection and generation give for them.

The key files in keys/ and the numbers in scores.json were written by the code as it stood before its modules were
rearranged. Their secrets are fixed and published here: never mark a text with these keys. This script computes the
numbers again from the committed keys and texts. It uses public names alone, so that it runs unchanged on every release.

    python tests/golden/make.py --check    compares bit for bit with scores.json; exit status 1 on a difference
    python tests/golden/make.py --write    writes scores.json

Language models and embedders are the stand-ins of `alimark.testing`. `GoldenChat` answers the two questions that alimark
puts to a chat model. Keys that name an embedder of the store get a stand-in of its name, fingerprint and dimension, since
spans depend on the fingerprint.
"""

import argparse
import contextlib
import json
import math
import os
import random
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import alimark
from alimark.testing import StandInEmbedder, StandInLLM

HERE = Path(__file__).resolve().parent
SCORES = HERE / "scores.json"
DIMENSIONS = {"stand-in": 64, "all-MiniLM-L6-v2": 384, "all-mpnet-base-v2": 768}
ONLY_LOADED = ("kgw-store-tokenizer",)
"""Keys that name files which only the network has; their ids are compared, and nothing is scored."""

SETTINGS: dict[str, dict[str, Any]] = {
    "none": {"restructure": "none", "draws": 200},
    "merge and split": {"restructure": (1, 1), "draws": 200},
    "excerpt": {"search": "excerpt", "draws": 200, "max_blocks": 40},
    "reference": {"null": "reference", "draws": 200},
    "stop": {"stop_after": 5},
    "tail": {"tail": True, "draws": 400},
}
RIVAL_SETTINGS = ("stop", "tail")
MANY = {
    "hard": ("hard-2", "hard-4", "hard-8", "hard-16", "hard-8-centre"),
    "soft": ("soft-v3", "soft-v3-offsets", "soft-v3-schedule"),
    "schemes": ("hard-8", "semstamp", "pmark", "kgw"),
}
PROMPTS = ["The harbour was quiet before dawn.", "A letter came on Monday."]

Values = dict[str, Any]


def encoded(value: Any) -> Any:
    """The value as JSON knows it, with every float written so that no bit is lost."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, dict):
        return {str(name): encoded(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encoded(item) for item in value]
    return value


def clauses(text: str) -> list[tuple[int, int]]:
    """A splitter of another name: sentences also end at semicolons."""
    return [match.span() for match in re.finditer(r"[^.!?;]+[.!?;]*\s*", text)]


class GoldenChat(StandInLLM):
    """Answers rewriting with some words replaced, and restructuring with two sentences joined."""

    WORDS = ("harbour", "candle", "window", "forest", "engine", "silver", "mountain", "music", "winter", "lantern")

    def draw(self, requests: Sequence[Any], sampling: Any, over: Any) -> list[list[Any]]:
        drawn = super().draw(requests, sampling, over)
        return [
            [self._answer(request, request.first + i, draw) for i, draw in enumerate(draws)]
            for request, draws in zip(requests, drawn, strict=True)
        ]

    def _answer(self, request: Any, number: int, draw: Any) -> Any:
        # The field was called `turns` in the code that wrote the golden files.
        messages = request.messages if hasattr(request, "messages") else request.turns
        asked = messages[-1].content
        chance = random.Random(f"{request.seed} {number} {asked}")
        _, _, passage = asked.partition("[Paraphrased Text]:\n\n")
        answer = self._joined(passage.partition("\n\nOutput format")[0], chance) if passage else ""
        return type(draw)(answer or self._reworded(asked.rpartition("\n\n")[2], chance), 9, "model")

    def _joined(self, text: str, chance: random.Random) -> str:
        ends = [match.start() for match in re.finditer(r"\. (?=[A-Z])", text)]
        at = chance.choice(ends) if ends else len(text)
        return text[:at] + ", and " + text[at + 2 : at + 3].lower() + text[at + 3 :] if ends else text

    def _reworded(self, sentence: str, chance: random.Random) -> str:
        words = sentence.split()
        free = [i for i, word in enumerate(words) if word.isalpha() and word.islower() and len(word) > 2]
        for i in chance.sample(free, min(3, len(free))):
            words[i] = chance.choice(self.WORDS)
        return " ".join(words)


def load_keys() -> dict[str, alimark.Key]:
    with contextlib.suppress(alimark.AlimarkError):  # registered already
        alimark.register_splitter("golden-clauses", clauses)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these files are public, so that others can read them
        return {path.stem: alimark.Key.load(path) for path in sorted((HERE / "keys").glob("*.json"))}


def load_texts() -> list[dict[str, Any]]:
    texts: list[dict[str, Any]] = json.loads((HERE / "texts.json").read_text("utf-8"))
    return texts


def mark_of(key: alimark.Key) -> Any:
    if not key.embedder:
        return alimark.load(key)
    return alimark.load(key, embedder=embedder_of(key))


def embedder_of(key: alimark.Key) -> StandInEmbedder:
    embedder = StandInEmbedder(DIMENSIONS[key.embedder], name=key.embedder)
    embedder.fingerprint = key.fingerprint
    return embedder


_EMPTY: Values = {"stopped_early": False, "keys_tried": 1, "p_least": (0.0).hex(), "passages": [], "recorded": []}
"""What is not written; nor is None."""


def detection_values(answer: Any) -> Values:
    """All that a detection says, without what is empty. Fields of its record that repeat a value are named alone."""
    values: Values = {
        name: encoded(getattr(answer, name))
        for name in "key_id scheme raw score z p_value p_randomised p_tail draws above ties".split()
    }
    verdict = answer.verdict()
    values |= {"verdict": str(verdict), "needed": verdict.needed, "stopped_early": answer.stopped_early}
    values |= {"keys_tried": answer.keys_tried, "p_least": encoded(answer.p_least)}
    values["sentence_count"] = len(answer.sentences)
    if answer.evidence:
        values["evidence"] = encoded(answer.evidence)
    if hasattr(answer, "alignment"):
        values["near_flips"] = answer.near_flips
        values["alignment"] = " ".join(step_code(step) for step in answer.alignment)
        values["passages"] = [encoded(vars(passage)) for passage in answer.passages]
    record = [[name, item] for name, item in encoded(answer.record()).items()]
    values["record"] = " ".join(
        name if name in values and values[name] == item else f"*{name}" for name, item in record
    )
    values["recorded"] = [[name, item] for name, item in record if name not in values or values[name] != item]
    return {name: value for name, value in values.items() if value != _EMPTY.get(name)}


def step_code(step: Any) -> str:
    """Kind, sentences, part, block and bits agreed, such as merge2+3>4:7."""
    kind = "" if step.kind == "match" else step.kind
    block = "" if step.block is None else f">{step.block}"
    agreed = "" if step.agreed is None else f":{step.agreed}"
    return kind + "+".join(map(str, step.sentences)) + (step.part or "") + block + agreed


def record_values(record: dict[str, Any]) -> list[Any]:
    """The record of a text that was written, in order, without its times.

    Where the text is its sentences with a blank between them, their lengths stand for them.
    """
    cost = {name: item for name, item in record["cost"].items() if name not in ("seconds", "elapsed")}
    sentences = record["sentences"]
    if " ".join(sentences) == record["text"]:
        sentences = [len(sentence) for sentence in sentences]
    settings = record["settings"] | {"sampling": sampling_values(record["settings"]["sampling"])}
    changed = {"cost": cost, "sentences": sentences, "settings": settings}
    return [[name, encoded(item)] for name, item in (record | changed).items()]


def sampling_values(sampling: dict[str, Any]) -> Any:
    """The defaults, which most records hold, are written once."""
    return "default" if sampling.items() <= asdict(alimark.Sampling()).items() else sampling


def detections(stem: str, key: alimark.Key, texts: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The name and the answer of every detection under one key."""
    mark = mark_of(key)
    marked = [text for text in texts if stem in text["keys"]]
    chosen = [text for text in texts if not text["keys"]] + marked
    for text, answer in zip(chosen, mark.detect([text["text"] for text in chosen]), strict=True):
        yield f"default/{text['name']}", answer
    names = tuple(SETTINGS) if key.scheme == "alimark" else RIVAL_SETTINGS
    if key.scheme == "alimark" and key.soft:
        names = tuple(name for name in names if name != "reference")  # the public code has no rule for soft decisions
    if stem in ("hard-1", "hard-32"):
        names = tuple(name for name in names if name != "reference")  # a table takes seconds; hard-5 has one
    if key.scheme == "exp":
        names = ("stop",)
    for name in names:
        for text in (marked if name == "excerpt" else marked[:1]) or chosen[:1]:
            yield f"{name}/{text['name']}", mark.detect(text["text"], **SETTINGS[name])
    if key.scheme == "alimark":
        text = chosen[1]
        for name in ("learned", "learned+single"):
            if stem in ("hard-8", "soft-v3"):
                detection = mark.detect(text["text"], restructure=name, variants=2, draws=200, llm=GoldenChat())
                yield f"{name}/{text['name']}", detection
    if key.scheme == "pmark":
        yield f"model/{chosen[1]['name']}", mark.detect(chosen[1]["text"], draws=200, llm=StandInLLM())


def generations(stem: str, key: alimark.Key, texts: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[Any]]]:
    """The name and the record of every text written under one key that marks sentences."""
    mark = mark_of(key)
    candidates = 12 if key.scheme == "alimark" else 24
    generation = mark.generate(PROMPTS[0], StandInLLM(seed=1), sentences=4, candidates=candidates, seed=11)
    yield "one prompt", record_values(generation.record(stem))
    # The option was called `callers` in the code that wrote the golden files.
    option = "max_concurrency" if hasattr(StandInLLM(), "max_concurrency") else "callers"
    concurrency: dict[str, Any] = {option: 2 if stem == "hard-8" else 1}
    llm = StandInLLM(seed=2, blanks=0.1, repeats=0.1, **concurrency)
    several = mark.generate(list(PROMPTS), llm, sentences=2, candidates=candidates, seed=21)
    for number, generation in enumerate(several):
        yield f"prompt {number} of {len(several)}", record_values(generation.record(stem))
    if stem in ("hard-8", "hard-8-offsets", "soft-v3", "soft-default"):
        # Earlier releases did not let the model end its answer unless it was asked for.
        sampling, llm = alimark.Sampling(may_end=False), StandInLLM(ends_after=3)
        chat = mark.generate(PROMPTS[1], llm, sentences=9, seed=31, prompt_style="chat", sampling=sampling)
        yield "chat", record_values(chat.record(stem))
        rewriting = mark.rewrite(texts[0]["text"], GoldenChat(), seed=41, candidates=8, mean_closeness=0.7)
        yield "rewrite", record_values(rewriting.record(stem))


def compute() -> Values:
    """Everything that scores.json holds, from the committed keys and texts."""
    keys, texts = load_keys(), load_texts()
    default = {name: value for name, value in asdict(alimark.Sampling()).items() if value or name == "may_end"}
    content: Values = {"sampling": {"default": encoded(default)}}
    with contextlib.chdir(HERE):  # keys name tokenizer.json there
        for stem, key in keys.items():
            content[stem] = {"id": key.id}
            if stem in ONLY_LOADED:
                continue
            content[stem]["detect"] = {
                name: without(detection_values(answer), key_id=key.id, scheme=key.scheme)
                for name, answer in detections(stem, key, texts)
            }
            if key.scheme not in ("kgw", "exp", "synthid", "sir"):
                content[stem]["generate"] = dict(generations(stem, key, texts))
        content["many keys"] = {"detect": dict(many_keys(keys, texts))}
    return content


def without(values: Values, **known: str) -> Values:
    """The values less those that are as they must be."""
    return {name: value for name, value in values.items() if name not in known or known[name] != value}


def many_keys(keys: dict[str, alimark.Key], texts: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Values]]:
    for name, stems in MANY.items():
        for text in (texts[0], next(text for text in texts if stems[0] in text["keys"])):
            for search in ("whole", "excerpt") if name == "hard" else ("whole",):
                options: dict[str, Any] = {"search": search} if search == "excerpt" else {}
                some = [keys[stem] for stem in stems]
                for rank, answer in enumerate(
                    alimark.detect(text["text"], some, embedder=embedder_of(some[0]), best=2, **options), 1
                ):
                    yield f"{name}/{search}/{text['name']}/{rank}", detection_values(answer)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a nested one with where it stands; an empty list or table is a value, too."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not items or not value:
        yield path, value
    for name, item in items:
        yield from leaves(item, f"{path}/{name}")


_ROUNDED = re.compile(r"/detect/.*/(raw|score|z|p_tail|confidence|evidence/.*)$")
"""Floats that come out of matrix products or of the C library, which another machine may round otherwise."""
_TIED = re.compile(r"^/synthid[^/]*/detect/.*/(p_value|p_randomised|above|ties)$")
"""SynthID's score is itself such a product, and many random keys score the same but for the last bit."""


def differences(values: Values, wanted: Values, *, tolerance: float = 0.0) -> tuple[int, list[str]]:
    """How many values were compared, and a line for each that differs.

    `tolerance`: relative, of the floats that another machine may round otherwise. Where it is given, ties of SynthID's random
    keys may fall otherwise, too. All other values are compared bit for bit.
    """
    left, right = dict(leaves(values)), dict(leaves(wanted))
    lines = []
    for path in [*right, *(path for path in left if path not in right)]:
        ours, theirs = left.get(path, "absent"), right.get(path, "absent")
        if type(ours) is type(theirs) and ours == theirs:
            continue
        if not (tolerance and _alike(path, ours, theirs, tolerance)):
            lines.append(f"{path}: {ours!r}, and {theirs!r} in {SCORES.name}")
    order = [path for path in left if path in right] == [path for path in right if path in left]
    return len(right), lines if order else [*lines, "the same values stand in another order"]


def _alike(path: str, ours: Any, theirs: Any, tolerance: float) -> bool:
    if type(ours) is int and type(theirs) is int:
        return bool(_TIED.search(path)) and abs(ours - theirs) <= 20
    try:
        left, right = float.fromhex(ours), float.fromhex(theirs)
    except (TypeError, ValueError):
        return False
    if _TIED.search(path):
        return abs(left - right) <= 0.02
    return bool(_ROUNDED.search(path)) and math.isclose(left, right, rel_tol=tolerance, abs_tol=tolerance)


def count_scores(content: Values) -> int:
    return sum(len(part.get("detect", ())) for part in content.values())


def committed() -> Values:
    content: Values = json.loads(SCORES.read_text("utf-8"))
    return content


def dumped(content: Values) -> str:
    """A line for each detection and each text, so that a difference can be read."""
    parts = []
    for stem, part in content.items():
        lines = []
        for name, item in part.items():
            rows = [f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in item.items()] if (
                isinstance(item, dict)
            ) else []  # fmt: skip
            lines.append(f"{json.dumps(name)}: " + ("{\n" + ",\n".join(rows) + "}" if rows else json.dumps(item)))
        parts.append(f"{json.dumps(stem)}: {{" + ",\n".join(lines) + "}")
    return "{" + ",\n".join(parts) + "}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Computes the golden scores again.")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--check", action="store_true", help="compare with scores.json, bit for bit")
    choice.add_argument("--write", action="store_true", help="write scores.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ALIMARK_HOME"] = folder  # so that no table of an earlier run is read
        content = json.loads(json.dumps(compute()))
    if options.write:
        SCORES.write_text(dumped(content), "utf-8")
    elif not options.check:
        sys.stdout.write(dumped(content))
    else:
        count, lines = differences(content, committed())
        sys.stdout.write("".join(f"{line}\n" for line in lines[:40]))
        sys.stdout.write(
            f"{count_scores(content)} scores, {count:,} values compared bit for bit, {len(lines):,} differ\n"
        )
        return int(bool(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
