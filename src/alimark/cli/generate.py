"""alimark generate: write marked text."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from alimark.cli import show
from alimark.errors import AlimarkError, LLMError, RecordError

if TYPE_CHECKING:
    from alimark.generate import Generation, MarkedSentence
    from alimark.llm.base import LLM
    from alimark.watermark import AliMark


def generate(
    key: Annotated[Path, typer.Option("-k", "--key", help="Key file from `alimark keygen`.")],
    prompt: Annotated[
        str | None, typer.Option("-p", "--prompt", help="Text to continue; - reads standard input.")
    ] = None,
    input_file: Annotated[
        Path | None, typer.Option("--input", help="JSONL with a `prompt` (and an `id`) on each line.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="JSONL to append to; finished ids are skipped.")
    ] = None,
    llm: Annotated[str, typer.Option(help="A name of `alimark models list`, a path or a hub id.")] = "smollm2-135m",
    sentences: Annotated[int, typer.Option(help="Sentences to write.")] = 12,
    candidates: Annotated[int, typer.Option(help="Candidates sampled for each sentence: more, a stronger mark.")] = 64,
    temperature: Annotated[float, typer.Option(help="Sampling temperature.")] = 0.7,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling.")] = 0.95,
    repetition_penalty: Annotated[float, typer.Option(help="Over prompt and text; 1 for none.")] = 1.15,
    may_end: Annotated[
        bool, typer.Option("--may-end", help="Let the model end its text before all sentences are written.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Repeat a run: same seed, same text.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole record.")] = False,
) -> None:
    """Write text that carries the mark of a key.

    One prompt: the text goes to standard output. Many prompts: --input and
    --output; the run can be interrupted at any time and goes on where it
    stopped. Weights are fetched on first use.

        alimark generate -k key.json -p "The lighthouse keeper opened the door."
        alimark generate -k key.json --input prompts.jsonl --output texts.jsonl
    """
    from alimark.generate import GenerationSettings
    from alimark.key import Key
    from alimark.llm.base import Sampling
    from alimark.watermark import AliMark

    if (prompt is None) == (input_file is None):
        raise AlimarkError("give either --prompt, or --input and --output")
    if (input_file is None) != (output is None):
        raise AlimarkError("--input and --output go together")
    try:
        sampling = Sampling(temperature, top_p, repetition_penalty, may_end=may_end)
    except ValueError as error:
        raise AlimarkError(str(error)) from None
    settings = GenerationSettings(sentences, candidates, sampling)
    loaded = Key.load(key)
    mark = AliMark(loaded, embedder=show.load_embedder(loaded.embedder))
    if input_file is not None and output is not None:
        _many(mark, llm, input_file, output, settings, seed, as_json)
        return
    text = show.read_stdin() if prompt == "-" else prompt or ""
    if not text.strip():
        raise AlimarkError("the prompt is empty; give at least a word to continue")
    made = write_one(mark, show.load_llm(llm), text, settings, seed)
    if as_json:
        show.print_json(made.record("prompt"))
    else:
        typer.echo(made.text)
    _say(made)


def write_one(
    mark: AliMark, llm: LLM, prompt: str, settings: object, seed: int | None, title: str = "marking"
) -> Generation:
    """One text, with a bar that moves at each sentence."""
    from alimark.generate import GenerationSettings, generate

    assert isinstance(settings, GenerationSettings)
    with show.progress() as bar:
        task = bar.add_task(title, total=settings.sentences)
        ticker = show.Ticker()

        def step(sentence: MarkedSentence) -> None:
            ticker.tick(f"{title}: sentence {sentence.number} of {settings.sentences}")
            bits = f"{sentence.matches}/{mark.key.block_size} bits"
            bar.update(task, completed=sentence.number, description=f"{title} ({bits}, {sentence.tokens} tokens)")

        return generate(prompt, mark.key, mark.embedder, llm, settings, seed=seed, progress=step)


def _say(made: Generation) -> None:
    per_sentence = sum(made.matches) / max(1, len(made.matches))
    show.note(
        f"{len(made.sentences)} sentences, {per_sentence:.1f} of {made.block_size} bits each, "
        f"{made.candidates} candidates, {made.tokens} tokens, {made.seconds:.0f} s, seed {made.seed}"
    )
    if made.ended != "complete":
        show.note(f"note: the text is shorter than asked for: {made.ended}")


def _many(
    mark: AliMark, llm_name: str, source: Path, output: Path, settings: object, seed: int | None, as_json: bool
) -> None:
    from alimark.generate import GenerationSettings, generate
    from alimark.records import JsonlWriter, read_jsonl, unique_id

    assert isinstance(settings, GenerationSettings)
    records = list(read_jsonl(source))
    counts: Counter[str] = Counter({"written": 0, "skipped": 0, "failed": 0, "short": 0})
    seen: set[str] = set()
    in_a_row = 0  # failures of the model, not of a line
    with JsonlWriter(output, key_id=mark.key.id) as writer, show.progress() as bar:
        task = bar.add_task("texts", total=len(records))
        ticker = show.Ticker()
        llm = None
        for number, (line, record) in enumerate(records):
            bar.advance(task, int(number > 0))
            ticker.tick(f"{number} of {len(records)} texts")
            if isinstance(record, RecordError) or not str(record.get("prompt") or "").strip():
                why = record if isinstance(record, RecordError) else f"{source}:{line} has no prompt"
                show.note(f"warning: {why}; passed over")
                counts["failed"] += 1
                continue
            own = unique_id(record, line, seen, field="prompt")
            if own in writer.done:
                counts["skipped"] += 1
                continue
            llm = llm or show.load_llm(llm_name)
            own_seed = None if seed is None else seed + number
            try:
                made = generate(str(record["prompt"]), mark.key, mark.embedder, llm, settings, seed=own_seed)
            except LLMError as error:
                in_a_row += 1
                if in_a_row == 3:  # the model is gone, not the prompt bad
                    raise
                show.note(f"warning: {source}:{line}: {error}; passed over")
                counts["failed"] += 1
                continue
            in_a_row = 0
            writer.write(record | made.record(own))
            counts["written"] += 1
            counts["short"] += made.ended != "complete"
    if as_json:
        show.print_json(dict(counts))
    short = f" ({counts['short']} shorter than asked for)" if counts["short"] else ""
    show.note(
        f"{counts['written']} texts written{short}, {counts['skipped']} were there already, {counts['failed']} lines failed"
    )
