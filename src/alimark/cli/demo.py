"""alimark demo: marks a text, changes it and finds the mark again, in one command."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from alimark.cli import detections, loading, options, show
from alimark.errors import AttackError, MissingExtra

if TYPE_CHECKING:
    from alimark.core.detection.aligned_results import AlignedDetection
    from alimark.core.generation.api import Generation
    from alimark.core.schemes.alimark import AliMark
    from alimark.lab.attacks import Attack

PROMPT = "The old lighthouse at the edge of the bay had been dark for thirty years."

# Arthur Conan Doyle, A Scandal in Bohemia (1891), in the public domain.
HUMAN = (
    "To Sherlock Holmes she is always the woman. I have seldom heard him mention her under any other name. In his eyes "
    "she eclipses and predominates the whole of her sex. It was not that he felt any emotion akin to love for Irene "
    "Adler. All emotions, and that one particularly, were abhorrent to his cold, precise but admirably balanced mind. He "
    "was, I take it, the most perfect reasoning and observing machine that the world has seen, but as a lover he would "
    "have placed himself in a false position. He never spoke of the softer passions, save with a gibe and a sneer. They "
    "were admirable things for the observer, excellent for drawing the veil from men's motives and actions. But for the "
    "trained reasoner to admit such intrusions into his own delicate and finely adjusted temperament was to introduce a "
    "distracting factor which might throw a doubt upon all his mental results. Grit in a sensitive instrument, or a crack "
    "in one of his own high-power lenses, would not be more disturbing than a strong emotion in a nature such as his. And "
    "yet there was but one woman to him, and that woman was the late Irene Adler, of dubious and questionable memory. I "
    "had seen little of Holmes lately."
)


CHANGED = "marked, then merged, split and cut"
TRANSLATED = "marked, then translated and back"
HUMAN_ROW = "human"
OTHER_KEY = "marked, under another key"

SENTENCES = 24
_SEED = 7  # of the sampling; the key is new each time
_MAX_TOKENS = 40
"""The most tokens of a candidate. A small model now and then writes endless sentences, for which the demo need not wait."""


class DemoRow(NamedTuple):
    """A text by name, and its detection."""

    name: str
    text: str
    detection: AlignedDetection


Prompt = Annotated[str, typer.Option("-p", "--prompt", help="The text that the marked text continues.")]
Model = Annotated[str, typer.Option(help="A name from `alimark models list`, a path or a hub id.")]


def demo(prompt: Prompt = PROMPT, llm: Model = "smollm2-135m", as_json: options.JsonOutput = False) -> None:
    """Mark a text, change it, and find the mark again: a fresh key, 24 sentences, five detections.

    On first use, a small language model and an embedder are fetched (180 MB);
    nothing else is written to disk. One of the changed texts was translated
    to Portuguese and back, which needs the extra `lab`. The strength is light,
    which saves time; `alimark generate` marks more strongly.
    """
    from alimark.cli.generate import write_one
    from alimark.core.generation.api import GenerationSettings
    from alimark.core.generation.settings import candidates_and_steering
    from alimark.core.keys.key import DEFAULT_EMBEDDER, Key
    from alimark.core.llm.base import Sampling
    from alimark.core.schemes.alimark import AliMark

    embedder, model = loading.load_embedder(DEFAULT_EMBEDDER), loading.load_llm(llm)
    mark, other = (AliMark(Key.generate(embedder=embedder), embedder=embedder) for _ in range(2))
    candidates, steering = candidates_and_steering(
        "light", None, None, mark.candidates, steerable=mark.steerable(model)
    )
    settings = GenerationSettings(SENTENCES, candidates, Sampling(max_tokens=_MAX_TOKENS), steering=steering)
    title = f"{SENTENCES} marked sentences, {candidates} candidates each"
    generation = write_one(mark, model, prompt, settings, _SEED, title)
    rows = detect_all(mark, other, generation)
    if as_json:
        answers = [{"text": row.name, **row.detection.record(), "verdict": row.detection.verdict()} for row in rows]
        texts = {row.name: row.text for row in rows}
        content = {"generation": generation.record("demo"), "changed": texts[CHANGED], "answers": answers}
        show.print_json(content | ({"translated": texts[TRANSLATED]} if TRANSLATED in texts else {}))
        return
    _print(prompt, generation.text, rows)
    show.note("strength light; `alimark generate` takes standard, which marks more strongly")


def detect_all(mark: AliMark, other: AliMark, generation: Generation) -> list[DemoRow]:
    """Looks for the mark in the marked text, in changed versions of it and in a human text, and under another key."""
    texts = {"marked": generation.text, CHANGED: changed(list(generation.sentences))}
    if translation := translated(generation.text):
        texts[TRANSLATED] = translation
    texts[HUMAN_ROW] = HUMAN
    rows = map(DemoRow, texts.keys(), texts.values(), mark.detect(list(texts.values())))
    return [*rows, DemoRow(OTHER_KEY, generation.text, other.detect(generation.text))]


def translated(text: str) -> str:
    """The text, translated to Portuguese and back; empty, with a note that says why, where that is not possible."""
    try:
        return _translation()(text)
    except (AttackError, MissingExtra) as error:
        show.note(f"note: the text that is translated to Portuguese and back is left out: {error}")
        return ""


@cache
def _translation() -> Attack:
    """The attack, which loads its models once."""
    from alimark.lab.attacks import load_attack

    return load_attack("translate", via="pt")


def changed(sentences: list[str]) -> str:
    """Changes a text as a rewrite would: one merge, one split and one deletion of sentences."""
    from alimark.core.frozen.text.units import halve

    result = list(sentences)
    if len(result) > 8:
        del result[7]
    if len(result) > 4:
        halves = halve(result[4])
        result[4:5] = halves or (result[4],)
    if len(result) > 2:
        first, second = result[1].rstrip('.!?"'), result[2]
        result[1:3] = [f"{first}, and {second[:1].lower()}{second[1:]}"]
    return " ".join(result)


def _print(prompt: str, text: str, rows: list[DemoRow]) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = show.stdout()
    console.print(Text(prompt, style="dim"))
    console.print(Padding(Text(text), (0, 0, 1, 2)))
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("text", "sentences", "score", "p", "verdict"):
        table.add_column(name, justify="left" if name in ("text", "verdict") else "right", no_wrap=True)
    for row in rows:
        verdict = row.detection.verdict()
        table.add_row(
            row.name, str(len(row.detection.sentences)), f"{row.detection.score:.2f}",
            row.detection.p_text, Text(verdict, style="bold green" if verdict == "found" else ""),
        )  # fmt: skip
    show.print_table(table, console)
    console.print("\nHow the changed text is aligned with the key:")
    console.print(detections.alignment_table(rows[1].detection, console.width))
