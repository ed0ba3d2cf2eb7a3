"""alimark demo: marks a text, changes it and finds the mark again, in one command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from alimark.cli import detections, loading, options, show

if TYPE_CHECKING:
    from alimark.detection.results import AlignedDetection

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


@dataclass(frozen=True)
class Row:
    """A text by name, and its detection."""

    name: str
    detection: AlignedDetection


Prompt = Annotated[str, typer.Option("-p", "--prompt", help="The text that the marked text continues.")]
Model = Annotated[str, typer.Option(help="A name from `alimark models list`, a path or a hub id.")]
Candidates = Annotated[int, typer.Option(help="Candidates for each sentence; `alimark generate` takes 64.")]
Seed = Annotated[int, typer.Option(help="Seed of the sampling; the key is new each time.")]


def demo(
    prompt: Prompt = PROMPT,
    llm: Model = "smollm2-135m",
    candidates: Candidates = 16,
    seed: Seed = 7,
    as_json: options.JsonOutput = False,
) -> None:
    """Mark a text, change it, and find the mark again: a fresh key, 12 sentences, four detections.

    On first use, a small language model and an embedder are fetched (180 MB);
    nothing else is written to disk. To save time, 16 candidates are sampled
    for each sentence; `alimark generate` samples 64 and marks more strongly.
    """
    from alimark.cli.generate import write_one
    from alimark.generation.api import GenerationSettings
    from alimark.keys.key import DEFAULT_EMBEDDER, Key
    from alimark.schemes.alimark import AliMark

    embedder = loading.load_embedder(DEFAULT_EMBEDDER)
    key, other = (Key.generate(embedder=embedder, decision="hard") for _ in range(2))
    model = loading.load_llm(llm)
    mark = AliMark(key, embedder=embedder)
    settings = GenerationSettings(sentences=12, candidates=candidates)
    title = f"12 marked sentences, {candidates} candidates each"
    generation = write_one(mark, model, prompt, settings, seed, title)
    texts = {
        "marked": generation.text,
        "marked, then merged, split and cut": changed(list(generation.sentences)),
        "human": HUMAN,
    }
    rows = [Row(name, detection) for name, detection in zip(texts, mark.detect(list(texts.values())), strict=True)]
    rows.append(Row("marked, under another key", AliMark(other, embedder=embedder).detect(generation.text)))
    if as_json:
        answers = [{"text": row.name, **row.detection.record(), "verdict": row.detection.verdict()} for row in rows]
        show.print_json(
            {"generation": generation.record("demo"), "changed": list(texts.values())[1], "answers": answers}
        )
        return
    _print(prompt, generation.text, rows)
    show.note(f"{candidates} candidates a sentence; `alimark generate` takes 64 and marks more strongly")


def changed(sentences: list[str]) -> str:
    """Changes a text as a rewrite would: one merge, one split and one deletion of sentences."""
    from alimark.text.units import halve

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


def _print(prompt: str, text: str, rows: list[Row]) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = show.stdout()
    console.print(Text(prompt, style="dim"))
    console.print(Padding(Text(text), (0, 0, 1, 2)))
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("text", "sentences", "z", "score", "p", "verdict"):
        table.add_column(name, justify="left" if name in ("text", "verdict") else "right", no_wrap=True)
    for row in rows:
        verdict = row.detection.verdict()
        table.add_row(
            row.name, str(len(row.detection.sentences)), f"{row.detection.z:.2f}", f"{row.detection.score:.2f}",
            detections.p_text(row.detection), Text(verdict, style="bold green" if verdict == "found" else ""),
        )  # fmt: skip
    console.print(table)
    console.print("\nHow the changed text is aligned with the key:")
    console.print(detections.alignment_table(rows[1].detection))
