"""alimark generate: write marked text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from alimark.cli import loading, show
from alimark.cli.options import Address, EngineName, JsonOutput, Output, Payload, ReplicaCount, Seed, StrengthOption
from alimark.cli.texts import Bar, TextFile, TextRow, make_all
from alimark.core._util.files import decode
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from alimark.audit.replicas import Replicas
    from alimark.core._util.jsonl import Record
    from alimark.core.generation.api import Finished, Generation, GenerationSettings, MarkedSentence, PromptStyle
    from alimark.core.keys.key import Key
    from alimark.core.llm.base import LLM
    from alimark.core.schemes.base import Watermark

KeyOption = Annotated[Path | None, typer.Option("-k", "--key", help="Key file from `alimark keygen`.")]
PromptOption = Annotated[str | None, typer.Option("-p", "--prompt", help="Text to continue; - reads standard input.")]
InputOption = Annotated[
    Path | None, typer.Option("--input", help="JSONL file with a `prompt` (and an `id`) on each line.")
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
        show_default="those of --strength; for rivals the number of their papers",
    ),
]
SteeringOption = Annotated[
    float | None,
    typer.Option(
        help="How strongly the model is steered towards the key, instead of --strength: 0 for not at all, 2.5 as for standard. "
        "A steered model needs fewer candidates (docs/soft.md).",
        show_default="0 with --candidates",
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


def generate(
    key: KeyOption = None,
    prompt: PromptOption = None,
    input_file: InputOption = None,
    output: Output = None,
    llm: LLMOption = ["smollm2-135m"],  # noqa: B006 - typer copies it
    sentences: SentencesOption = 12,
    tokens: TokensOption = None,
    strength: StrengthOption = None,
    candidates: CandidatesOption = None,
    steering: SteeringOption = None,
    prompt_style: StyleOption = "continue",
    unmarked: UnmarkedOption = False,
    temperature: TemperatureOption = 0.7,
    top_p: TopPOption = 0.95,
    repetition_penalty: PenaltyOption = 1.15,
    may_end: MayEndOption = None,
    engine: EngineName = "plain",
    address: Address = None,
    replicas: ReplicaCount = None,
    seed: Seed = None,
    payload: Payload = None,
    as_json: JsonOutput = False,
) -> None:
    """Write text that carries the mark of a key.

    With one prompt the text is printed sentence by sentence. With --input and --output a
    text is written for every line, and a run that was interrupted goes on where it
    stopped. The API key of a server is read from ALIMARK_API_KEY or OPENAI_API_KEY.

        alimark generate -k key.json -p "The lighthouse keeper opened the door."
        alimark generate -k key.json -p "Why is the sky blue?" --prompt-style chat
        alimark generate -k key.json -p "A day at sea." --strength strong
        alimark generate -k key.json --input prompts.jsonl --output texts.jsonl
        alimark generate -k key.json -p "A day at sea." --payload 4711
        alimark generate -k key.json -p "Once" --llm openai:http://localhost:8000/v1
        alimark generate -k key.json --input prompts.jsonl --output texts.jsonl \\
            --engine ray --llm openai:http://a:8000/v1 --llm openai:http://b:8000/v1
    """
    if (prompt is None) == (input_file is None):
        raise AlimarkError("give either --prompt, or --input and --output")
    if (input_file is None) != (output is None):
        raise AlimarkError("--input and --output go together; give both, or neither")
    if (key is None) != unmarked:
        raise AlimarkError("give a key with -k, or --unmarked to write without one")
    if len(llm) > 1 and (engine == "plain" or replicas):
        raise AlimarkError("several --llm are the replicas of --engine ray, one each; add it, and leave out --replicas")
    chosen, how = (strength, candidates, steering), (temperature, top_p, repetition_penalty, may_end)
    settings_for = partial(_settings, sentences, chosen, how, prompt_style, tokens)
    settings_for(None, None)  # mistakes are reported before anything is loaded
    mark = _load_mark(key, payload, embedder=engine == "plain")
    if input_file is not None and output is not None:
        with loading.replicas(engine, address, replicas, llm) as cluster:
            _write_many(mark, llm[0], input_file, output, partial(settings_for, mark), seed, as_json, cluster)
    elif engine != "plain":
        raise AlimarkError("--engine ray writes many texts: give --input and --output")
    else:
        text, stream, model = _read_prompt(prompt or ""), None if as_json else _Stream(), loading.load_llm(llm[0])
        generation = write_one(mark, model, text, settings_for(mark, model), seed, stream=stream)
        _print_generation(generation, stream, mark.key if mark else None)


def _settings(
    sentences: int, chosen: tuple[str | None, int | None, float | None], how: tuple[float, float, float, bool | None],
    prompt_style: str, tokens: int | None, mark: Watermark | None, llm: LLM | None,
) -> GenerationSettings:  # fmt: skip
    """The settings from the options.

    `chosen` are strength, candidates and steering; `how` are temperature, top_p, repetition penalty and whether the model may
    end.
    """
    from alimark.core.generation.settings import DEFAULT_CANDIDATES, GenerationSettings, candidates_and_steering
    from alimark.core.llm.base import Sampling

    temperature, top_p, penalty, may_end = how
    if may_end is None:  # token-level schemes cannot let the model end its text on every engine
        may_end = prompt_style == "chat" and (mark is None or not mark.by_token)
    # Without a model these are only checked, or go to a cluster, whose models are steered where that is asked for.
    steerable = bool(chosen[2]) if mark is None or llm is None else mark.steerable(llm)
    count, steering = candidates_and_steering(
        *chosen, mark.candidates if mark else DEFAULT_CANDIDATES, steerable=steerable
    )
    try:
        sampling = Sampling(temperature, top_p, penalty, may_end=may_end)
    except ValueError as error:
        raise AlimarkError(str(error)) from None
    style: PromptStyle = prompt_style  # type: ignore[assignment]
    return GenerationSettings(sentences, count, sampling, prompt_style=style, tokens=tokens, steering=steering)


def _load_mark(key: Path | None, payload: int | None, *, embedder: bool) -> Watermark | None:
    """On a cluster the embedder is loaded where the texts are written, and not here."""
    from alimark.core.keys.key import Key

    if key is None and payload is not None:
        raise AlimarkError("a payload is part of a mark; give a key with -k")
    return None if key is None else loading.load_mark(Key.load(key).carrying(payload), embedder=embedder)


def _read_prompt(prompt: str) -> str:
    text = decode(sys.stdin.buffer.read(), "standard input") if prompt == "-" else prompt
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
            self.print(self._text.rstrip())  # the finished text does not end with white space

    def print(self, text: str, *, end: bool = False) -> None:
        """Prints what is new of the text so far, or of the finished text, which ends with a new line."""
        typer.echo(text[self._printed :], nl=end)
        self._printed = len(text)


def write_one(
    mark: Watermark | None, llm: LLM, prompt: str, settings: GenerationSettings, seed: int | None, title: str = "writing",
    stream: _Stream | None = None,
) -> Generation:  # fmt: skip
    """Writes one text, with a progress bar that moves at each sentence. `stream` prints the sentences as they are chosen."""
    from alimark.core.generation.api import Prompt
    from alimark.core.schemes.api import generate_many

    with show.progress(shown=not (stream and sys.stdout.isatty())) as bar:
        task = show.Task(bar, title, settings.sentences)

        def step(_: int, sentence: MarkedSentence) -> None:
            matches = f"{sentence.matches} matched, " if sentence.matches else ""
            line = f"{title}: sentence {sentence.number} of {settings.sentences}"
            task.show(line, sentence.number, title=f"{title} ({matches}{sentence.tokens} tokens)")
            if stream:
                stream.sentence(sentence)

        [(_, result)] = generate_many(mark, [Prompt(prompt, seed)], llm, settings, batch=1, progress=step)
    if isinstance(result, AlimarkError):
        raise result
    return result


def _print_generation(generation: Generation, stream: _Stream | None, key: Key | None) -> None:
    """Prints the rest of the text, or its whole record without a stream, on stdout, and what it cost on stderr."""
    from alimark.core.detection.stats.power import SentencesNeeded
    from alimark.core.schemes.registry import aligns

    if stream is None:
        show.print_json(generation.record("prompt"))
    else:
        stream.print(generation.text, end=True)
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
    if _shortened(generation):
        show.note(f"note: the text is shorter than asked for: {generation.ended}")
    needed = SentencesNeeded.of(key)(0.01) if key is not None and aligns(key.scheme) else None
    if needed is not None and len(generation.sentences) < needed:
        show.note(
            f"note: the text is too short to carry a mark that can be found: it has {len(generation.sentences)} sentences, and "
            f"{needed} are needed at a false-positive rate of 1%"
        )


def _write_many(
    mark: Watermark | None, llm_name: str, source: Path, output: Path,
    settings_for: Callable[[LLM | None], GenerationSettings], seed: int | None, as_json: bool, cluster: Replicas | None,
) -> None:  # fmt: skip
    """Writes a text for every line of a file that has none yet."""
    from alimark.core.generation.api import Prompt
    from alimark.core.schemes.api import generate_many

    short, limits = 0, dict[str, None]()
    key = None if mark is None else mark.key

    def write(rows: Sequence[TextRow], bar: Bar) -> Finished:
        prompts = [Prompt(row.record["prompt"], row.seed(seed), row.key) for row in rows]
        if cluster:
            return cluster.write(prompts, key, settings_for(None), llm=llm_name)
        llm = loading.load_llm(llm_name)
        return generate_many(mark, prompts, llm, settings_for(llm), progress=bar.sentence)

    def record(row: TextRow, generation: Generation) -> Record:
        nonlocal short
        limits.update(dict.fromkeys(generation.limits))
        short += _shortened(generation)
        return generation.record(row.id)

    with loading.quiet_ray(cluster is not None):
        counts = make_all(TextFile(source, "prompt", key), output, key.id if key else None, write, record)
    for limit in limits:
        show.note(f"note: {limit}")
    if as_json:
        show.print_json({**counts, "short": short})
    shorter = f" ({short} shorter than asked for)" if short else ""
    show.note(
        f"{counts['written']} texts written{shorter}, {counts['skipped']} were there already, {counts['failed']} lines failed"
    )


def _shortened(generation: Generation) -> bool:
    """Whether a text is shorter than it was asked to be, other than because its model might end it."""
    may_end = generation.settings.sampling.may_end
    return generation.ended != "complete" and not (may_end and generation.ended == "model ended")
