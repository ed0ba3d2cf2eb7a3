"""alimark generate: write marked text."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from alimark.cli import loading, show
from alimark.errors import AlimarkError, RecordError

if TYPE_CHECKING:
    from alimark._util.jsonl import JsonlWriter
    from alimark.generation.api import Generation, GenerationSettings, MarkedSentence, Prompt
    from alimark.llm.base import LLM
    from alimark.scale.generation import Replicas
    from alimark.schemes.base import Watermark

_FAULTS = 3  # so many in a row, and the model is gone, not the prompts bad


def generate(
    key: Annotated[Path | None, typer.Option("-k", "--key", help="Key file from `alimark keygen`.")] = None,
    prompt: Annotated[
        str | None, typer.Option("-p", "--prompt", help="Text to continue; - reads standard input.")
    ] = None,
    input_file: Annotated[
        Path | None, typer.Option("--input", help="JSONL with a `prompt` (and an `id`) on each line.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="JSONL to append to; finished ids are skipped.")
    ] = None,
    llm: Annotated[
        list[str],
        typer.Option(
            help="A name of `alimark models list`, a path or a hub id; openai:http://HOST:PORT/v1#MODEL for a server. "
            "With --engine ray several, one for each replica."
        ),
    ] = ["smollm2-135m"],  # noqa: B006 - typer copies it
    sentences: Annotated[int, typer.Option(help="Sentences to write.")] = 12,
    tokens: Annotated[
        int | None,
        typer.Option(help="Tokens to write instead, for the schemes that mark tokens (docs/token-rivals.md)."),
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option(
            help="Candidates sampled for each sentence, at most: more, a stronger mark (default 64; rivals: theirs)."
        ),
    ] = None,
    prompt_style: Annotated[
        str,
        typer.Option(
            help="continue: go on where the prompt stops. chat: answer it, through the model's chat template."
        ),
    ] = "continue",
    unmarked: Annotated[
        bool, typer.Option("--unmarked", help="Write plain text by the same loop, to compare; takes no key.")
    ] = False,
    temperature: Annotated[float, typer.Option(help="Sampling temperature.")] = 0.7,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling.")] = 0.95,
    repetition_penalty: Annotated[float, typer.Option(help="Over prompt and text; 1 for none.")] = 1.15,
    may_end: Annotated[
        bool, typer.Option("--may-end", help="Let the model end its text before all sentences are written.")
    ] = False,
    batch: Annotated[
        int | None, typer.Option(help="Texts written at a time; default, what the model is fastest with.")
    ] = None,
    engine: Annotated[
        str,
        typer.Option(help="Who writes many texts: plain (this process) or ray (replicas of the model on a cluster)."),
    ] = "plain",
    address: Annotated[str | None, typer.Option(help="A running Ray cluster; by default this machine alone.")] = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Replicas of the model; default, as many as there is room for.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Repeat a run: same seed, same text.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole record.")] = False,
) -> None:
    """Write text that carries the mark of a key.

    One prompt: the text goes to standard output. Many prompts: --input and
    --output; several texts are written at a time, each is on disk as soon as
    it is finished, and an interrupted run goes on where it stopped. Weights
    are fetched on first use. A server's API key is read from ALIMARK_API_KEY
    or OPENAI_API_KEY.

        alimark generate -k key.json -p "The lighthouse keeper opened the door."
        alimark generate -k key.json -p "Why is the sky blue?" --prompt-style chat
        alimark generate -k key.json --input prompts.jsonl --output texts.jsonl
        alimark generate -k key.json -p "Once" --llm openai:http://localhost:8000/v1
        alimark generate -k key.json --input prompts.jsonl --output texts.jsonl \\
            --engine ray --llm openai:http://a:8000/v1 --llm openai:http://b:8000/v1
    """
    from alimark.generation.api import GenerationSettings
    from alimark.keys.key import Key
    from alimark.llm.base import Sampling

    if (prompt is None) == (input_file is None):
        raise AlimarkError("give either --prompt, or --input and --output")
    if (input_file is None) != (output is None):
        raise AlimarkError("--input and --output go together")
    if (key is None) != unmarked:
        raise AlimarkError("give a key with -k, or --unmarked to write without one")
    try:
        sampling = Sampling(temperature, top_p, repetition_penalty, may_end=may_end)
    except ValueError as error:
        raise AlimarkError(str(error)) from None
    GenerationSettings(sentences, candidates or 64, sampling, prompt_style=prompt_style)  # type: ignore[arg-type]
    if batch is not None and batch < 1:
        raise AlimarkError("batch must be at least 1")
    if len(llm) > 1 and (engine == "plain" or replicas):
        raise AlimarkError("several --llm are the replicas of --engine ray, one each")
    # On a cluster the embedder is loaded where the texts are written.
    mark = None if key is None else loading.load_mark(Key.load(key), embedder=engine == "plain")
    count = candidates if candidates is not None else mark.candidates if mark else 64
    settings = GenerationSettings(sentences, count, sampling, prompt_style=prompt_style, tokens=tokens)  # type: ignore[arg-type]
    if input_file is not None and output is not None:
        with loading.replicas(engine, address, replicas, llm) as writers:
            _many(mark, llm[0], input_file, output, settings, batch, seed, as_json, writers)
        return
    if engine != "plain":
        raise AlimarkError("--engine ray writes many texts: give --input and --output")
    text = show.read_stdin() if prompt == "-" else prompt or ""
    if not text.strip():
        raise AlimarkError("the prompt is empty; give at least a word to continue")
    made = write_one(mark, loading.load_llm(llm[0]), text, settings, seed)
    if as_json:
        show.print_json(made.record("prompt"))
    else:
        typer.echo(made.text)
    _say(made)


def write_one(
    mark: Watermark | None,
    llm: LLM,
    prompt: str,
    settings: GenerationSettings,
    seed: int | None,
    title: str = "writing",
) -> Generation:
    """One text, with a bar that moves at each sentence."""
    from alimark.generation.api import Prompt

    with show.progress() as bar:
        task = bar.add_task(title, total=settings.sentences)
        ticker = show.Ticker()
        size = mark.key.block_size if mark else 0

        def step(_: int, sentence: MarkedSentence) -> None:
            ticker.tick(f"{title}: sentence {sentence.number} of {settings.sentences}")
            bits = f"{sentence.matches}/{size} bits, " if size else ""
            bar.update(task, completed=sentence.number, description=f"{title} ({bits}{sentence.tokens} tokens)")

        [(_, made)] = written(mark, [Prompt(prompt, seed)], llm, settings, progress=step)
    if isinstance(made, AlimarkError):
        raise made
    return made


def written(
    mark: Watermark | None, prompts: Iterable[Prompt], llm: LLM, settings: GenerationSettings, **options: Any
) -> Iterator[tuple[int, Generation | AlimarkError]]:
    """Texts as they are finished, marked or, without a mark, plain."""
    from alimark.generation.api import generate_many

    if mark is None:
        return generate_many(prompts, None, None, llm, settings, **options)
    return mark.generate_many(prompts, llm, settings, **options)


def _say(made: Generation) -> None:
    per_sentence = sum(made.matches) / max(1, len(made.matches))
    what = "bits each, " if made.scheme == "alimark" else f"matched each ({made.scheme}), "
    bits = f"{per_sentence:.1f} of {made.block_size} {what}" if made.marked else "unmarked, "
    show.note(
        f"{len(made.sentences)} sentences, {bits}"
        f"{made.candidates} candidates, {made.tokens} tokens, {made.elapsed:.0f} s, seed {made.seed}"
    )
    if made.unmet:
        show.note(f"note: {made.unmet} sentences do not meet the rule: no candidate did, so the best was taken")
    for limit in made.limits:
        show.note(f"note: {limit}")
    if made.ended != "complete":
        show.note(f"note: the text is shorter than asked for: {made.ended}")


@dataclass(frozen=True)
class _Job:
    """A line of the input that is to be written."""

    line: int
    id: str
    record: dict[str, Any]
    seed: int | None


def _jobs(source: Path, writer: JsonlWriter, seed: int | None, counts: Counter[str]) -> tuple[list[_Job], list[str]]:
    """What is left to be written, and the ids of all lines in order."""
    from alimark._util.jsonl import read_jsonl, unique_id

    jobs: list[_Job] = []
    order: list[str] = []
    seen: set[str] = set()
    for number, (line, record) in enumerate(read_jsonl(source)):
        if isinstance(record, RecordError) or not str(record.get("prompt") or "").strip():
            why = record if isinstance(record, RecordError) else f"{source}:{line} has no prompt"
            show.note(f"warning: {why}; passed over")
            counts["failed"] += 1
            continue
        own = unique_id(record, line, seen, field="prompt")
        order.append(own)
        if own in writer.done:
            counts["skipped"] += 1
        else:
            # By its line, not by its turn: a resumed run gives the texts of one that never stopped.
            jobs.append(_Job(line, own, record, None if seed is None else seed + number))
    return jobs, order


class _Bar:
    """Texts done, and the tokens of all texts in progress, so that a long text is seen to move."""

    def __init__(self, bar: Any, jobs: int) -> None:
        self._bar, self._jobs = bar, jobs
        self._task = bar.add_task("texts", total=jobs)
        self._ticker = show.Ticker()
        self._tokens: dict[int, int] = {}
        self._started = time.perf_counter()
        self._done = 0

    def sentence(self, number: int, sentence: MarkedSentence) -> None:
        self._tokens[number] = sentence.tokens
        rate = sum(self._tokens.values()) / (time.perf_counter() - self._started)
        self._bar.update(self._task, description=f"texts ({rate:,.0f} tokens/s)")
        self._ticker.tick(f"{self._done} of {self._jobs} texts, {rate:,.0f} tokens/s")

    def text(self) -> None:
        self._done += 1
        self._bar.advance(self._task)


def _many(
    mark: Watermark | None,
    llm_name: str,
    source: Path,
    output: Path,
    settings: GenerationSettings,
    batch: int | None,
    seed: int | None,
    as_json: bool,
    writers: Replicas | None,
) -> None:
    from alimark._util.jsonl import JsonlWriter

    counts: Counter[str] = Counter({"written": 0, "skipped": 0, "failed": 0, "short": 0})
    with JsonlWriter(output, key_id=mark.key.id if mark else None) as writer:
        jobs, order = _jobs(source, writer, seed, counts)
        if jobs:
            limits: dict[str, None] = {}
            with show.progress() as shown, loading.quiet_ray(writers is not None):
                bar = _Bar(shown, len(jobs))
                made_by: Any
                if writers:
                    key = None if mark is None else mark.key
                    made_by = partial(writers.write, key=key, settings=settings, llm=llm_name, batch=batch)
                else:
                    llm = loading.load_llm(llm_name)
                    made_by = partial(written, mark, llm=llm, settings=settings, batch=batch, progress=bar.sentence)
                for job, made in _written(jobs, made_by):
                    bar.text()
                    if isinstance(made, AlimarkError):
                        show.note(f"warning: {source}:{job.line}: {made}; passed over")
                        counts["failed"] += 1
                        continue
                    writer.write(job.record | made.record(job.id))
                    limits |= dict.fromkeys(made.limits)
                    counts["written"] += 1
                    counts["short"] += made.ended != "complete"
            for limit in limits:
                show.note(f"note: {limit}")
        writer.arrange(order)
    if as_json:
        show.print_json(dict(counts))
    short = f" ({counts['short']} shorter than asked for)" if counts["short"] else ""
    show.note(
        f"{counts['written']} texts written{short}, {counts['skipped']} were there already, {counts['failed']} lines failed"
    )


def _written(
    jobs: list[_Job], made_by: Callable[[list[Prompt]], Iterator[tuple[int, Generation | AlimarkError]]]
) -> Iterator[tuple[_Job, Generation | AlimarkError]]:
    """Texts as they are finished. An error that came often in a row is raised: then it is the model's."""
    from alimark.generation.api import Prompt

    prompts = [Prompt(str(job.record["prompt"]), job.seed) for job in jobs]
    faults: list[AlimarkError] = []
    for i, made in made_by(prompts):
        if not isinstance(made, AlimarkError):
            faults.clear()
        elif not any(made is fault for fault in faults):  # one fault may end several texts
            faults.append(made)
            if len(faults) == _FAULTS:
                raise made
        yield jobs[i], made
