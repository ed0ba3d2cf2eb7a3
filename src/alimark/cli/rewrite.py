"""alimark rewrite: mark a text that exists."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from alimark.cli import loading, show
from alimark.errors import AlimarkError, LLMError

if TYPE_CHECKING:
    from alimark.rewriting.results import RewriteSettings, Rewriting
    from alimark.schemes.alimark import AliMark

DEFAULT_LLM = "qwen2.5-coder-1.5b"
"""The smallest model of the store that rewrites a sentence without losing it."""


def rewrite(
    key: Annotated[Path, typer.Option("-k", "--key", help="Key file from `alimark keygen`.")],
    file: Annotated[str | None, typer.Argument(help="Text file; - reads standard input.")] = None,
    input_file: Annotated[
        Path | None, typer.Option("--input", help="JSONL with a `text` (and an `id`) on each line.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="JSONL to append to; finished ids are skipped.")
    ] = None,
    llm: Annotated[
        str,
        typer.Option(
            help="A chat model: a name of `alimark models list`, a path, a hub id, or openai:http://host:port/v1#model. "
            "Small models move the meaning; a large one keeps it better and carries more."
        ),
    ] = DEFAULT_LLM,
    candidates: Annotated[int, typer.Option(help="Rewrites of each sentence: more, a stronger mark.")] = 16,
    closeness: Annotated[float, typer.Option(help="Least cosine of a rewritten sentence to what it was.")] = 0.62,
    mean_closeness: Annotated[
        float, typer.Option(help="Least mean cosine over the text: higher, a weaker mark.")
    ] = 0.81,
    waves: Annotated[
        int, typer.Option(help="Rounds of rewrites; from the second on, of the best so far. More, a stronger mark.")
    ] = 2,
    context: Annotated[
        bool, typer.Option("--context", help="Show the model the sentences around; small models mix them in.")
    ] = False,
    temperature: Annotated[float, typer.Option(help="Sampling temperature: low, and all rewrites are alike.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling.")] = 0.95,
    seed: Annotated[int | None, typer.Option(help="Repeat a run: same seed, same text.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole record.")] = False,
) -> None:
    """Mark a text that exists by rewriting its sentences.

    A chat model rewrites every sentence many times, and the key picks among
    the rewrites that keep numbers, names and meaning. Paragraphs, lists,
    headings and code blocks stay as they are; so does a sentence whose
    rewrites all go too far. How far the text moved is reported: read it
    before you publish it, for a cosine is no proof of equal meaning.

        alimark rewrite -k key.json article.txt > marked.txt
        alimark rewrite -k key.json page.md --llm openai:https://host/v1#model
        alimark rewrite -k key.json --input texts.jsonl --output marked.jsonl

    A rewrite carries fewer bits than a sentence that a model was free to
    choose, so it takes a longer text to be found than generated text does.
    """
    from dataclasses import replace

    from alimark.keys.key import Key
    from alimark.rewriting.results import RewriteSettings
    from alimark.schemes.alimark import AliMark

    if (file is None) == (input_file is None):
        raise AlimarkError("name a text file (- for standard input), or give --input and --output")
    if (input_file is None) != (output is None):
        raise AlimarkError("--input and --output go together")
    settings = RewriteSettings(candidates, closeness, mean_closeness, waves, context)
    try:
        settings = replace(settings, sampling=replace(settings.sampling, temperature=temperature, top_p=top_p))
    except ValueError as error:
        raise AlimarkError(str(error)) from None
    text = None if file is None else _read(file)
    loaded = Key.load(key)
    mark = AliMark(loaded, embedder=loading.load_embedder(loaded.embedder))
    if input_file is not None and output is not None:
        _many(mark, llm, input_file, output, settings, seed, as_json)
        return
    made = _one(mark, llm, text or "", settings, seed)
    if as_json:
        show.print_json(made.record(file or ""))
    else:
        typer.echo(made.text, nl=not made.text.endswith("\n"))
    _say(made)


def _read(file: str) -> str:
    from alimark._util.files import read_text

    text = show.read_stdin() if file == "-" else read_text(file)
    if not text.strip():
        raise AlimarkError("the text is empty; there is nothing to rewrite")
    return text


def _one(mark: AliMark, llm: str, text: str, settings: RewriteSettings, seed: int | None) -> Rewriting:
    from alimark.rewriting.api import rewrite

    model = loading.load_llm(llm)
    with show.progress() as bar:
        task = bar.add_task("rewriting", total=None)
        ticker = show.Ticker()

        def step(done: int, total: int) -> None:
            ticker.tick(f"rewriting: sentence {done} of {total}")
            bar.update(task, completed=done, total=total)

        return rewrite(text, mark.key, mark.embedder, model, settings, seed=seed, progress=step)


def _say(made: Rewriting) -> None:
    count = len(made.rewritten)
    before, after = (sum(bits) / count for bits in ([one.matches_before for one in made.rewritten], made.matches))
    show.note(
        f"{count} sentences, {after:.1f} of {made.block_size} bits each ({before:.1f} before); cosine to the original "
        f"{sum(made.cosines) / count:.2f} on average, {min(made.cosines):.2f} at least; {len(made.left_alone)} left alone; "
        f"{made.candidates} rewrites, {made.tokens} tokens, {made.seconds:.0f} s, seed {made.seed}"
    )
    if len(made.left_alone) > count / 2:
        why = ", ".join(f"{reason} {number}" for reason, number in Counter(made.rejected).most_common(3))
        show.note(
            f"note: most sentences were left alone, so the mark is weak; rewrites were rejected for: {why or 'none'}"
        )


def _many(
    mark: AliMark, llm_name: str, source: Path, output: Path, settings: RewriteSettings, seed: int | None, as_json: bool
) -> None:
    from alimark._util.jsonl import JsonlWriter
    from alimark.cli.texts import TextFile
    from alimark.rewriting.api import rewrite_many
    from alimark.rewriting.results import Original

    if output.exists() and output.samefile(source):
        raise AlimarkError("--output must be another file than --input")
    counts: Counter[str] = Counter({"written": 0, "skipped": 0, "failed": 0})
    texts = TextFile(source)
    with JsonlWriter(output, key_id=mark.key.id) as writer, show.progress() as bar:
        rows = [row for row in texts.rows() if row.id not in writer.done]
        counts["skipped"], counts["failed"] = len(texts.order) - len(rows), texts.bad
        if rows:
            task, ticker = bar.add_task("texts", total=len(rows)), show.Ticker()
            in_a_row = 0  # failures of the model, not of a text
            model = loading.load_llm(llm_name)
            originals = (Original(row.record["text"], None if seed is None else seed + row.number) for row in rows)
            for place, made in rewrite_many(originals, mark.key, mark.embedder, model, settings):
                row = rows[place]
                in_a_row = in_a_row + 1 if isinstance(made, LLMError) else 0
                if isinstance(made, AlimarkError):
                    if in_a_row == 3:  # the model is gone
                        raise made
                    show.note(f"warning: {source}: {row.id}: {made}; passed over")
                    counts["failed"] += 1
                else:
                    writer.write(row.record | made.record(row.id))
                    counts["written"] += 1
                bar.advance(task)
                ticker.tick(f"{place + 1} of {len(rows)} texts")
    if as_json:
        show.print_json(dict(counts))
    show.note(
        f"{counts['written']} texts written, {counts['skipped']} were there already, {counts['failed']} lines failed"
    )
