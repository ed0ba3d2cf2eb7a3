"""alimark rewrite: mark a text that exists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from alimark.cli import loading, show
from alimark.cli.options import JsonOutput, KeyFile, Output, Payload, RewriteStrength, Seed
from alimark.cli.texts import Bar, TextFile, TextRow, make_all, read_text
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from alimark.core._util.jsonl import Record
    from alimark.core.rewriting.api import FinishedRewrites, RewriteSettings, Rewriting
    from alimark.core.schemes.alimark import AliMark

DEFAULT_LLM = "qwen2.5-coder-1.5b"
"""The smallest model of the store that rewrites a sentence without changing its meaning."""

_FPR = 0.01  # of the verdict at the end

FileArgument = Annotated[str | None, typer.Argument(help="Text file; - reads standard input.")]
InputOption = Annotated[
    Path | None, typer.Option("--input", help="JSONL file with a `text` (and an `id`) on each line.")
]
LLMOption = Annotated[
    str,
    typer.Option(
        help="A chat model: a name of `alimark models list`, a path, a hub id, or openai:http://HOST:PORT/v1#MODEL. "
        "Small models change the meaning more; a large one keeps it better and gives a stronger mark."
    ),
]
CandidatesOption = Annotated[
    int | None,
    typer.Option(
        help="Rewrites of each sentence, instead of --strength: more make a stronger mark.",
        show_default="16, as for light",
    ),
]
ClosenessOption = Annotated[float, typer.Option(help="The least cosine of a rewritten sentence to the original.")]
MeanOption = Annotated[
    float, typer.Option(help="The least mean cosine over the whole text: a higher one makes a weaker mark.")
]


def rewrite(
    key: KeyFile,
    file: FileArgument = None,
    input_file: InputOption = None,
    output: Output = None,
    llm: LLMOption = DEFAULT_LLM,
    strength: RewriteStrength = None,
    candidates: CandidatesOption = None,
    closeness: ClosenessOption = 0.62,
    mean_closeness: MeanOption = 0.81,
    payload: Payload = None,
    seed: Seed = None,
    as_json: JsonOutput = False,
) -> None:
    """Mark a text that exists by rewriting its sentences.

    A chat model rewrites every sentence many times, and the key chooses among
    the rewrites that keep numbers, names, negations and meaning. Paragraphs,
    line breaks, lists, headings and code blocks stay as they are; so does a
    sentence whose rewrites all change too much. At the end the command
    detects the mark, prints the p-value, and lists the sentences whose
    meaning moved most: read these before you publish the text, because a
    high cosine does not prove that two sentences mean the same.

        alimark rewrite -k key.json article.txt > marked.txt
        alimark rewrite -k key.json page.md --llm openai:https://host/v1#model
        alimark rewrite -k key.json --input texts.jsonl --output marked.jsonl

    A rewritten sentence carries fewer bits than a generated one, so a
    rewritten text has to be longer than a generated text to be detected.
    """
    from alimark.core.generation.settings import candidates_for
    from alimark.core.keys.key import Key
    from alimark.core.rewriting.settings import DEFAULT_REWRITES, RewriteSettings
    from alimark.core.schemes.alimark import AliMark

    if (file is None) == (input_file is None):
        raise AlimarkError("name a text file (- for standard input), or give --input and --output")
    if (input_file is None) != (output is None):
        raise AlimarkError("--input and --output go together; give both, or neither")
    count = candidates_for(strength, candidates, DEFAULT_REWRITES)
    settings = RewriteSettings(count, closeness, mean_closeness)
    text = "" if file is None else read_text(file)
    if file is not None and not text.strip():
        raise AlimarkError("the text is empty; there is nothing to rewrite")
    loaded = Key.load(key).carrying(payload)
    mark = AliMark(loaded, embedder=loading.load_embedder(loaded.embedder))
    if input_file is not None and output is not None:
        _rewrite_many(mark, llm, input_file, output, settings, seed, as_json)
    else:
        rewriting = _rewrite_one(mark, llm, text, settings, seed)
        _print_rewriting(rewriting, _proof(mark, rewriting), file or "", as_json)


def _rewrite_one(mark: AliMark, llm_name: str, text: str, settings: RewriteSettings, seed: int | None) -> Rewriting:
    """Rewrites one text, with a progress bar that moves at each sentence."""
    from alimark.core.rewriting.api import Original, rewrite_many

    llm = loading.load_llm(llm_name)
    with show.progress() as bar:
        task = show.Task(bar, "rewriting")

        def step(_: int, done: int, total: int) -> None:
            task.show(f"rewriting: sentence {done} of {total}", done, total)

        originals = [Original(text, seed)]
        [(_, result)] = rewrite_many(originals, mark.key, mark.embedder, llm, settings, progress=step)
    if isinstance(result, AlimarkError):
        raise result
    return result


def _proof(mark: AliMark, rewriting: Rewriting) -> Record:
    """Detects the mark in the text before and after its rewriting, for the field `detection` of the record."""
    before, after = mark.detect([rewriting.original, rewriting.text])
    return {"verdict": str(after.verdict(_FPR)), "p_value": after.p_value, "p_value_before": before.p_value}


def _print_rewriting(rewriting: Rewriting, proof: Record, record_id: str, as_json: bool) -> None:
    """Prints the text, or its whole record, on stdout, and the proof, how far it moved and what it cost on stderr."""
    if as_json:
        show.print_json(rewriting.record(record_id) | {"detection": proof})
    else:
        typer.echo(rewriting.text, nl=not rewriting.text.endswith("\n"))
    count, cosines, left_alone = len(rewriting.rewritten), rewriting.cosines, len(rewriting.left_alone)
    before = sum(sentence.matches_before for sentence in rewriting.rewritten) / count
    after = sum(rewriting.matches) / count
    show.note(
        f"{count} sentences, {after:.1f} of {rewriting.block_size} bits each ({before:.1f} before); cosine to the original "
        f"{sum(cosines) / count:.2f} on average, {min(cosines):.2f} at least; {left_alone} left alone; "
        f"{rewriting.candidates} rewrites, {rewriting.tokens} tokens, {rewriting.seconds:.0f} s, seed {rewriting.seed}"
    )
    show.note(
        f"detected: {proof['verdict']}, p {proof['p_value']:.3g} (before the rewriting: {proof['p_value_before']:.3g})"
    )
    if proof["verdict"] != "found":
        show.note(
            "note: the mark is not found; draw more rewrites (--strength strong), or make a key that suits rewriting: "
            "alimark keygen --offsets 16 (docs/generating.md)"
        )
    if moved := rewriting.moved_most():
        show.note("moved most, read before publishing:")
    for sentence in moved:
        show.note(f"  {sentence.number} (cosine {sentence.cosine:.2f})\n    {sentence.before}\n    {sentence.after}")
    if left_alone > count / 2:
        why = ", ".join(f"{reason} {number}" for reason, number in Counter(rewriting.rejected).most_common(3))
        show.note(
            f"note: most sentences were left alone, so the mark is weak; rewrites were rejected for: {why or 'none'}"
        )


def _rewrite_many(
    mark: AliMark, llm_name: str, source: Path, output: Path, settings: RewriteSettings, seed: int | None, as_json: bool
) -> None:
    """Rewrites every text of a file that is not done yet."""
    from alimark.core.rewriting.api import Original, rewrite_many

    verdicts: Counter[str] = Counter()

    def rewrite(rows: Sequence[TextRow], _: Bar) -> FinishedRewrites:
        originals = [Original(row.record["text"], row.seed(seed), row.key) for row in rows]
        return rewrite_many(originals, mark.key, mark.embedder, loading.load_llm(llm_name), settings)

    def record(row: TextRow, rewriting: Rewriting) -> Record:
        proof = _proof(mark, rewriting)
        verdicts[proof["verdict"]] += 1
        return rewriting.record(row.id) | {"detection": proof}

    counts = make_all(TextFile(source, key=mark.key), output, mark.key.id, rewrite, record)
    if as_json:
        show.print_json({**counts, "found": verdicts["found"]})
    show.note(
        f"{counts['written']} texts written, the mark is found in {verdicts['found']} of them at p <= {_FPR:g}; "
        f"{counts['skipped']} were there already, {counts['failed']} lines failed"
    )
