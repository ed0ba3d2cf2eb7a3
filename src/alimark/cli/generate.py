"""alimark generate: write marked text."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from alimark.cli import loading, show
from alimark.cli.options import Address, EngineName, Strength
from alimark.errors import AlimarkError, RecordError

if TYPE_CHECKING:
    from rich.progress import Progress

    from alimark.audit.corpora.generation import Replicas
    from alimark.core._util.jsonl import JsonlWriter, Record
    from alimark.core.generation.api import Finished, Generation, GenerationSettings, MarkedSentence, Prompt
    from alimark.core.keys.key import Key
    from alimark.core.llm.base import LLM, Sampling
    from alimark.core.schemes.watermark import Watermark

_FAULTS = 3  # after so many errors in a row the model is at fault, and not the prompts

KeyOption = Annotated[Path | None, typer.Option("-k", "--key", help="Key file from `alimark keygen`.")]
PromptOption = Annotated[str | None, typer.Option("-p", "--prompt", help="Text to continue; - reads standard input.")]
InputOption = Annotated[
    Path | None, typer.Option("--input", help="JSONL file with a `prompt` (and an `id`) on each line.")
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", help="JSONL file to append to; ids that it has already are skipped.")
]
LLMOption = Annotated[
    list[str],
    typer.Option(
        help="Language model: a name of `alimark models list`, a path or a hub id; openai:http://HOST:PORT/v1#MODEL for a "
        "model on a server. With --engine ray it may be repeated, one for each replica."
    ),
]
SentencesOption = Annotated[int, typer.Option(help="Sentences to write; the most, with --may-end.")]
TokensOption = Annotated[
    int | None,
    typer.Option(help="Tokens to write instead of sentences, for schemes that mark tokens (docs/rivals.md)."),
]
CandidatesOption = Annotated[
    int | None,
    typer.Option(
        help="Candidates sampled for each sentence, instead of --strength: the mean or, for hard keys and rivals, the most. "
        "More make a stronger mark and take longer.",
        show_default="the number of the scheme's paper",
    ),
]
StyleOption = Annotated[
    str,
    typer.Option(
        help="continue: go on where the prompt stops. chat: answer the prompt, through the model's chat template."
    ),
]
UnmarkedOption = Annotated[
    bool, typer.Option("--unmarked", help="Write plain text in the same way, for comparison; takes no key.")
]
TemperatureOption = Annotated[float, typer.Option(help="Sampling temperature.")]
TopPOption = Annotated[float, typer.Option(help="Nucleus sampling: the probability mass to sample from.")]
PenaltyOption = Annotated[float, typer.Option(help="Repetition penalty over prompt and text; 1 for none.")]
MayEndOption = Annotated[
    bool | None,
    typer.Option(
        "--may-end/--no-may-end",
        help="Let the model end its text where it would without a mark; --sentences is then the most it writes.",
        show_default="with --prompt-style chat",
    ),
]
BatchOption = Annotated[
    int | None, typer.Option(help="Texts written at a time.", show_default="as many as the model is fastest with")
]
ReplicasOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Replicas of the model. Each has a GPU, where there are GPUs, or shares one if there are more replicas.",
        show_default="as many as the cluster has room for",
    ),
]
SeedOption = Annotated[int | None, typer.Option(help="Makes a run repeatable: the same seed gives the same text.")]
PayloadOption = Annotated[
    int | None,
    typer.Option(
        help="The number that the mark carries, for a key made with --payload-bits. With --input, a line's own `payload` "
        "comes first.",
        show_default="0, for a key with payloads",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the whole record as JSON.")]


def generate(
    key: KeyOption = None,
    prompt: PromptOption = None,
    input_file: InputOption = None,
    output: OutputOption = None,
    llm: LLMOption = ["smollm2-135m"],  # noqa: B006 - typer copies it
    sentences: SentencesOption = 12,
    tokens: TokensOption = None,
    strength: Strength = None,
    candidates: CandidatesOption = None,
    prompt_style: StyleOption = "continue",
    unmarked: UnmarkedOption = False,
    temperature: TemperatureOption = 0.7,
    top_p: TopPOption = 0.95,
    repetition_penalty: PenaltyOption = 1.15,
    may_end: MayEndOption = None,
    batch: BatchOption = None,
    engine: EngineName = "plain",
    address: Address = None,
    replicas: ReplicasOption = None,
    seed: SeedOption = None,
    payload: PayloadOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write text that carries the mark of a key.

    With one prompt the text is printed, each sentence as it is chosen. With --input and --output a text is
    written for every line; each is saved as soon as it is finished, and a run
    that was interrupted goes on where it stopped. Weights are fetched on first
    use. The API key of a server is read from ALIMARK_API_KEY or OPENAI_API_KEY.

        alimark generate -k key.json -p "The lighthouse keeper opened the door."
        alimark generate -k key.json -p "Why is the sky blue?" --prompt-style chat
        alimark generate -k key.json -p "A day at sea." --strength strong
        alimark generate -k key.json --input prompts.jsonl --output texts.jsonl
        alimark generate -k key.json -p "A day at sea." --payload 4711
        alimark generate -k key.json -p "Once" --llm openai:http://localhost:8000/v1
        alimark generate -k key.json --input prompts.jsonl --output texts.jsonl \\
            --engine ray --llm openai:http://a:8000/v1 --llm openai:http://b:8000/v1
    """
    _check_options(key, prompt, input_file, output, unmarked, payload, batch)
    if len(llm) > 1 and (engine == "plain" or replicas):
        raise AlimarkError("several --llm are the replicas of --engine ray, one each; add it, and leave out --replicas")
    sampling = _sampling(temperature, top_p, repetition_penalty)
    settings_for = partial(_settings, sentences, strength, candidates, sampling, may_end, prompt_style, tokens)
    settings_for(None)  # mistakes are reported before anything is loaded
    mark = None if key is None else _load_mark(key, payload, embedder=engine == "plain")
    if input_file is not None and output is not None:
        with loading.replicas(engine, address, replicas, llm) as cluster:
            _write_many(mark, llm[0], input_file, output, settings_for(mark), batch, seed, as_json, cluster)
    elif engine != "plain":
        raise AlimarkError("--engine ray writes many texts: give --input and --output")
    else:
        text = _read_prompt(prompt or "")
        stream = None if as_json else _Stream()
        generation = write_one(mark, loading.load_llm(llm[0]), text, settings_for(mark), seed, stream=stream)
        _print_generation(generation, stream)
        if mark is not None:
            _warn_of_short_text(generation, mark.key)


def _check_options(
    key: Path | None,
    prompt: str | None,
    input_file: Path | None,
    output: Path | None,
    unmarked: bool,
    payload: int | None,
    batch: int | None,
) -> None:
    if (prompt is None) == (input_file is None):
        raise AlimarkError("give either --prompt, or --input and --output")
    if (input_file is None) != (output is None):
        raise AlimarkError("--input and --output go together; give both, or neither")
    if (key is None) != unmarked:
        raise AlimarkError("give a key with -k, or --unmarked to write without one")
    if payload is not None and key is None:
        raise AlimarkError("a payload is part of a mark; give a key with -k")
    if batch is not None and batch < 1:
        raise AlimarkError("batch must be at least 1")


def _sampling(temperature: float, top_p: float, repetition_penalty: float) -> Sampling:
    from alimark.core.llm.base import Sampling

    try:
        return Sampling(temperature, top_p, repetition_penalty)
    except ValueError as error:
        raise AlimarkError(str(error)) from None


def _settings(
    sentences: int,
    strength: str | None,
    candidates: int | None,
    sampling: Sampling,
    may_end: bool | None,
    prompt_style: str,
    tokens: int | None,
    mark: Watermark | None,
) -> GenerationSettings:
    from alimark.core.generation.settings import DEFAULT_CANDIDATES, GenerationSettings, candidates_for
    from alimark.core.schemes.base import SentenceWatermark

    if may_end is None:  # token-level schemes cannot let the model end its text on every engine
        may_end = prompt_style == "chat" and (mark is None or isinstance(mark, SentenceWatermark))
    count = candidates_for(strength, candidates, mark.candidates if mark else DEFAULT_CANDIDATES)
    sampling = replace(sampling, may_end=may_end)
    return GenerationSettings(sentences, count, sampling, prompt_style=prompt_style, tokens=tokens)  # type: ignore[arg-type]


def _load_mark(key: Path, payload: int | None, *, embedder: bool) -> Watermark:
    """On a cluster the embedder is loaded where the texts are written, and not here."""
    from alimark.core.keys.key import Key

    return loading.load_mark(Key.load(key).carrying(payload), embedder=embedder)


def _read_prompt(prompt: str) -> str:
    text = show.read_stdin() if prompt == "-" else prompt
    if not text.strip():
        raise AlimarkError("the prompt is empty; give at least a word to continue")
    return text


class _Stream:
    """Prints a text on stdout sentence by sentence, as it is written."""

    def __init__(self) -> None:
        self._text, self._sentences, self._printed = "", 0, 0

    def sentence(self, sentence: MarkedSentence) -> None:
        """Prints a sentence. A scheme that reports only its last one has its text printed at the end."""
        if sentence.number == self._sentences + 1:
            self._sentences += 1
            self._text += sentence.piece
            self._print(self._text.rstrip())  # the finished text does not end with white space

    def finish(self, text: str) -> None:
        """Prints the rest of the finished text."""
        self._print(text)
        typer.echo()

    def _print(self, text: str) -> None:
        typer.echo(text[self._printed :], nl=False)
        self._printed = len(text)


def write_one(
    mark: Watermark | None,
    llm: LLM,
    prompt: str,
    settings: GenerationSettings,
    seed: int | None,
    title: str = "writing",
    stream: _Stream | None = None,
) -> Generation:
    """Writes one text, with a progress bar that moves at each sentence. `stream` prints the sentences as they are chosen."""
    from alimark.core.generation.api import Prompt
    from alimark.core.schemes.api import generate_many

    with show.progress(shown=not (stream and sys.stdout.isatty())) as bar:
        task = bar.add_task(title, total=settings.sentences)
        ticker = show.Ticker()

        def step(_: int, sentence: MarkedSentence) -> None:
            ticker.tick(f"{title}: sentence {sentence.number} of {settings.sentences}")
            matches = f"{sentence.matches} matched, " if sentence.matches else ""
            bar.update(task, completed=sentence.number, description=f"{title} ({matches}{sentence.tokens} tokens)")
            if stream:
                stream.sentence(sentence)

        [(_, result)] = generate_many(mark, [Prompt(prompt, seed)], llm, settings, batch=1, progress=step)
    if isinstance(result, AlimarkError):
        raise result
    return result


def _print_generation(generation: Generation, stream: _Stream | None) -> None:
    """Prints the rest of the text, or its whole record without a stream, on stdout, and what it cost on stderr."""
    from alimark.core.schemes.registry import aligns

    if stream is None:
        show.print_json(generation.record("prompt"))
    else:
        stream.finish(generation.text)
    matches = "unmarked"
    if generation.marked:
        per_sentence = sum(generation.matches) / max(1, len(generation.matches))
        unit = "bits each" if aligns(generation.scheme) else f"matched each ({generation.scheme})"
        matches = f"{per_sentence:.1f} of {generation.block_size} {unit}"
    show.note(
        f"{len(generation.sentences)} sentences, {matches}, {generation.candidates} candidates, "
        f"{generation.tokens} tokens, {generation.elapsed:.0f} s, seed {generation.seed}"
    )
    if generation.unmet:
        show.note(
            f"note: {generation.unmet} sentences do not meet the rule: no candidate did, so the best one was taken"
        )
    for limit in generation.limits:
        show.note(f"note: {limit}")
    if generation.ended != "complete" and not (
        generation.ended == "model ended" and generation.settings.sampling.may_end
    ):
        show.note(f"note: the text is shorter than asked for: {generation.ended}")


def _warn_of_short_text(generation: Generation, key: Key) -> None:
    """Says where a text has too few sentences for its mark to be found."""
    from alimark.core.detection.stats.power import SentencesNeeded
    from alimark.core.schemes.registry import aligns

    needed = SentencesNeeded.of(key)(0.01) if aligns(key.scheme) else None
    if needed is not None and len(generation.sentences) < needed:
        show.note(
            f"note: the text is too short to carry a mark that can be found: it has {len(generation.sentences)} sentences, and "
            f"{needed} are needed at a false-positive rate of 1%"
        )


@dataclass(frozen=True)
class _Job:
    """A line of the input file for which a text has to be written."""

    line: int
    id: str
    record: Record
    seed: int | None
    key: Key | None
    """The key of a line that names a payload; None where the line gets the key of the whole run."""


def _jobs(
    source: Path, writer: JsonlWriter, key: Key | None, seed: int | None, counts: Counter[str]
) -> tuple[list[_Job], list[str]]:
    """The lines for which a text has to be written, and the ids of all lines in order."""
    from alimark.core._util.jsonl import read_jsonl, unique_id

    jobs: list[_Job] = []
    order: list[str] = []
    seen: set[str] = set()
    for number, (line, record) in enumerate(read_jsonl(source)):
        try:
            line_key = _line_key(f"{source}:{line}", record, key)
        except AlimarkError as why:
            show.note(f"warning: {why}; passed over")
            counts["failed"] += 1
            continue
        assert isinstance(record, dict)
        job_id = unique_id(record, line, seen, field="prompt")
        order.append(job_id)
        if job_id in writer.done:
            counts["skipped"] += 1
        else:
            # The seed depends on the line and not on the turn, so that a resumed run gives the same texts.
            jobs.append(_Job(line, job_id, record, None if seed is None else seed + number, line_key))
    return jobs, order


def _line_key(where: str, record: Record | RecordError, key: Key | None) -> Key | None:
    """The key of a line that names a payload; raises AlimarkError for a line that no text can be written for."""
    if isinstance(record, RecordError):
        raise record
    if not str(record.get("prompt") or "").strip():
        raise AlimarkError(f"{where} has no prompt")
    payload = record.get("payload")
    try:
        return None if payload is None or key is None else key.carrying(payload)
    except AlimarkError as error:
        raise AlimarkError(f"{where}: {error}") from None


class _Bar:
    """Shows how many texts are done, and the tokens of all texts in progress."""

    def __init__(self, bar: Progress, jobs: int) -> None:
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


def _write_many(
    mark: Watermark | None,
    llm_name: str,
    source: Path,
    output: Path,
    settings: GenerationSettings,
    batch: int | None,
    seed: int | None,
    as_json: bool,
    cluster: Replicas | None,
) -> None:
    """Writes a text for every line of a file that has none yet."""
    from alimark.core._util.jsonl import JsonlWriter
    from alimark.core.schemes.api import generate_many

    counts: Counter[str] = Counter({"written": 0, "skipped": 0, "failed": 0, "short": 0})
    with JsonlWriter(output, key_id=mark.key.id if mark else None) as writer:
        key = None if mark is None else mark.key
        jobs, order = _jobs(source, writer, key, seed, counts)
        if jobs:
            with show.progress() as progress, loading.quiet_ray(cluster is not None):
                bar = _Bar(progress, len(jobs))
                if cluster:
                    write = partial(cluster.write, key=key, settings=settings, llm=llm_name, batch=batch)
                else:
                    llm = loading.load_llm(llm_name)
                    write = partial(generate_many, mark, llm=llm, settings=settings, batch=batch, progress=bar.sentence)
                limits = _save(_results(jobs, write), source, writer, bar, counts)
            for limit in limits:
                show.note(f"note: {limit}")
        writer.arrange(order)
    if as_json:
        show.print_json(dict(counts))
    short = f" ({counts['short']} shorter than asked for)" if counts["short"] else ""
    show.note(
        f"{counts['written']} texts written{short}, {counts['skipped']} were there already, {counts['failed']} lines failed"
    )


def _save(
    results: Iterator[tuple[_Job, Generation | AlimarkError]],
    source: Path,
    writer: JsonlWriter,
    bar: _Bar,
    counts: Counter[str],
) -> list[str]:
    """Appends each text to the output as soon as it is finished; returns the settings that the model could not follow."""
    limits: dict[str, None] = {}
    for job, result in results:
        bar.text()
        if isinstance(result, AlimarkError):
            show.note(f"warning: {source}:{job.line}: {result}; passed over")
            counts["failed"] += 1
            continue
        writer.write(job.record | result.record(job.id))
        limits |= dict.fromkeys(result.limits)
        counts["written"] += 1
        may_end = result.settings.sampling.may_end
        counts["short"] += result.ended != "complete" and not (may_end and result.ended == "model ended")
    return list(limits)


def _results(
    jobs: list[_Job], write: Callable[[list[Prompt]], Finished]
) -> Iterator[tuple[_Job, Generation | AlimarkError]]:
    """Texts as they are finished. Several errors in a row end the run: then the model is at fault."""
    from alimark.core.generation.api import Prompt

    faults: list[AlimarkError] = []
    for i, result in write([Prompt(str(job.record["prompt"]), job.seed, job.key) for job in jobs]):
        if not isinstance(result, AlimarkError):
            faults.clear()
        elif not any(result is fault for fault in faults):  # one error may end several texts
            faults.append(result)
            if len(faults) == _FAULTS:
                raise result
        yield jobs[i], result
