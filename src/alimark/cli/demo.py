"""alimark demo: the whole road in one command, on embedded defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from alimark.cli import detections, loading, show

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
    name: str
    found: AlignedDetection


def demo(
    prompt: Annotated[str, typer.Option("-p", "--prompt", help="What the marked text continues.")] = PROMPT,
    llm: Annotated[str, typer.Option(help="A name of `alimark models list`, a path or a hub id.")] = "smollm2-135m",
    candidates: Annotated[int, typer.Option(help="Candidates a sentence; 64 is the default elsewhere.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of the sampling; the key is new each time.")] = 7,
    as_json: Annotated[bool, typer.Option("--json", help="Print texts and answers as JSON.")] = False,
) -> None:
    """Mark a text, change it, and find the mark again: a fresh key, 12 sentences, four answers.

    Fetches a small language model and an embedder on first use (180 MB), keeps
    nothing else. To save time 16 candidates are sampled for each sentence,
    where `alimark generate` takes 64 and marks more strongly.
    """
    from alimark.cli.generate import write_one
    from alimark.generation.api import GenerationSettings
    from alimark.keys.key import DEFAULT_EMBEDDER, Key
    from alimark.schemes.alimark import AliMark

    embedder = loading.load_embedder(DEFAULT_EMBEDDER)
    key, other = Key.generate(embedder=embedder), Key.generate(embedder=embedder)
    model = loading.load_llm(llm)
    mark = AliMark(key, embedder=embedder)
    settings = GenerationSettings(sentences=12, candidates=candidates)
    title = f"12 marked sentences, {candidates} candidates each"
    made = write_one(mark, model, prompt, settings, seed, title)
    texts = {
        "marked": made.text,
        "marked, then merged, split and cut": changed(list(made.sentences)),
        "human": HUMAN,
    }
    rows = [Row(name, found) for name, found in zip(texts, mark.detect(list(texts.values())), strict=True)]
    rows.append(Row("marked, under another key", AliMark(other, embedder=embedder).detect(made.text)))
    if as_json:
        answers = [{"text": row.name, **row.found.record(), "verdict": row.found.verdict()} for row in rows]
        show.print_json({"generation": made.record("demo"), "changed": list(texts.values())[1], "answers": answers})
        return
    _print(prompt, made.text, rows)
    show.note(f"{candidates} candidates a sentence; `alimark generate` takes 64 and marks more strongly")


def changed(sentences: list[str]) -> str:
    """One merge, one split and one deletion: what a rewrite does to the structure of a text."""
    from alimark.text.units import halve

    done = list(sentences)
    if len(done) > 8:
        del done[7]
    if len(done) > 4:
        halves = halve(done[4])
        done[4:5] = halves or (done[4],)
    if len(done) > 2:
        first, second = done[1].rstrip('.!?"'), done[2]
        done[1:3] = [f"{first}, and {second[:1].lower()}{second[1:]}"]
    return " ".join(done)


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
        verdict = row.found.verdict()
        table.add_row(
            row.name, str(len(row.found.sentences)), f"{row.found.z:.2f}", f"{row.found.score:.2f}",
            detections.p_text(row.found), Text(verdict, style="bold green" if verdict == "found" else ""),
        )  # fmt: skip
    console.print(table)
    console.print("\nHow the changed text meets the key:")
    console.print(detections.alignment_table(rows[1].found))
