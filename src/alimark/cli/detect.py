"""alimark detect: tells whether a text carries the mark of a key, and shows the evidence."""

from __future__ import annotations

import os
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from alimark.cli import detections, loading, options, show, texts, verify
from alimark.errors import AlimarkError, KeyMismatch, RecordError

if TYPE_CHECKING:
    from alimark.core._util.jsonl import Record
    from alimark.core.detection.results import Detection
    from alimark.core.detection.stats.p_values import RandomKeys
    from alimark.core.keys.key import Key

_LONG = 200_000
"""Characters from which a text may be too long to be searched, so that this is found out first."""
Files = Annotated[
    list[str] | None,
    typer.Argument(
        help="Documents: text, PDF, DOCX, ODT, HTML, EPUB, RTF, Markdown or e-mail files; - reads standard input. "
        "Web addresses are not fetched."
    ),
]
ReportFile = Annotated[
    Path | None,
    typer.Option(
        help="Write signed evidence about the texts to this file: a page that prints well (.html), or JSON (.json). "
        "`alimark verify` checks both."
    ),
]
Alignment = Annotated[
    bool | None,
    typer.Option(
        "--alignment/--no-alignment",
        help="Show how the sentences were aligned with the key, and the probability of each to carry the mark.",
        show_default="for a single text in which the mark was found",
    ),
]
Timestamp = Annotated[
    str | None,
    typer.Option(help="Address of an authority of time stamps (RFC 3161), which says in the evidence when it existed."),
]
Services = Annotated[
    list[str] | None,
    typer.Option(
        "--service",
        help="Address of a service to ask in place of a key; may be repeated. A single one gets the token in ALIMARK_TOKEN.",
    ),
]
Calibration = Annotated[
    Path | None,
    typer.Option(help="Output of `alimark calibrate --json` under the same key, which the evidence then contains."),
]


def detect(
    key: options.MaybeKeyFiles = None,
    files: Files = None,
    fpr: options.Fpr = 0.01,
    excerpt: options.Excerpt = None,
    restructure: options.Restructure = "single",
    llm: options.DetectionModel = None,
    variants: options.Variants = 4,
    draws: options.Draws = None,
    tail: options.Tail = False,
    null: options.Null = "paper",
    precision: options.PrecisionOption = "auto",
    report: ReportFile = None,
    calibration: Calibration = None,
    timestamp: Timestamp = None,
    service: Services = None,
    alignment: Alignment = None,
    as_json: options.JsonOutput = False,
) -> None:
    """Tell whether a text carries the mark of a key, with a p-value and the alignment behind it.

    The p-value is the share of random keys that score as high on this text, so
    there is no threshold to tune. "not found" does not mean that a person
    wrote the text. Texts of more than 60 sentences are searched for marked
    passages, too. For many documents, use `alimark audit`.

    Of a web page the article is read, of a PDF file the text without running
    heads; what was left out is said on stderr (docs/documents.md).

        alimark detect -k key.json text.txt
        alimark detect -k key.json report.docx page.html paper.pdf
        alimark detect -k keys/ text.txt              # which of several keys
        alimark detect -k key.json text.txt --report evidence.html
        alimark detect --service https://detector.example text.txt
        alimark detect -k key.json --restructure learned+single \\
            --llm openai:http://localhost:8000/v1 text.txt

    Exit status: 0 found in all texts, 1 not found in some, 2 error.
    """
    from alimark.core.keys.key import load_keys

    if service and not key:
        raise typer.Exit(_ask(service, files or [], report, as_json))
    if service or not key:
        raise AlimarkError(
            "name a key file or folder with -k, or the address of a service with --service, and not both"
        )
    keys = load_keys(key)
    settings = options.search_settings(keys, fpr, excerpt, restructure, llm, variants, draws, tail, null, precision)
    if not files:
        raise AlimarkError("name a text file, or - for standard input")
    if report is not None:
        verify.check_report(report, files)
    answers = _answers(files, keys, settings, llm)
    if report is not None:
        verify.write_report(report, answers, keys, fpr, calibration, timestamp)
    raise typer.Exit(_print(answers, fpr, as_json, alignment))


def _ask(services: list[str], names: list[str], report: Path | None, as_json: bool) -> int:
    """Asks services about all texts, prints their answers, and returns the exit status: 0 where each text is recognised."""
    from alimark.audit.remote import RemoteDetector
    from alimark.core._util.files import write_whole

    token = os.environ.get("ALIMARK_TOKEN") if len(services) == 1 else None
    detector = RemoteDetector(dict.fromkeys(services, token))
    answers = {name: detector.detect(texts.read_text(name).strip()) for name in names}
    pairs = [(name, answer) for name, every in answers.items() for answer in every]
    if as_json:
        show.print_json([{"file": name, **asdict(answer)} for name, answer in pairs])
    for name, answer in pairs if not as_json else []:
        where = f"{answer.operator} ({answer.service})"
        rate = f"at a false-positive rate of {answer.false_positive_rate}"
        show.stdout().print(
            f"{name}: {answer.error or f'{answer.verdict} by {where}, {rate}'}", markup=False, soft_wrap=True
        )
    if report is not None:
        for number, signed in enumerate((answer.signed for _, answer in pairs if answer.signed), 1):
            path = report if number == 1 else report.with_stem(f"{report.stem}-{number}")
            write_whole(path, f"{signed}\n".encode())
            show.note(f"wrote {path}; alimark verify checks it")
    if not all(any(answer.verdict for answer in every) for every in answers.values()):
        return 2
    return 0 if all(any(answer.verdict == "found" for answer in every) for every in answers.values()) else 1


def _answers(names: list[str], keys: list[Key], settings: RandomKeys, llm_name: str | None) -> verify.Answers:
    """For each file its detections, best key first, or the error that prevented them."""
    from alimark.core._util import progress
    from alimark.core.schemes.api import detect as detect_keys
    from alimark.core.schemes.registry import aligns

    progress.on_command_line = True
    contents = _contents(names, keys[0], settings)
    if all(isinstance(content, AlimarkError) for content in contents.values()):
        return {name: content for name, content in contents.items() if isinstance(content, AlimarkError)}
    loading.fetch_models(keys[0].embedder)
    if aligns(keys[0].scheme):
        # Loading the compiled kernels takes half a second; it runs while the embedder is loaded. An error must wait for it:
        # a program that ends while a kernel is compiled, which happens once, crashes. So the thread is no daemon.
        threading.Thread(target=_warm_up, args=(keys[0], settings), name="alimark-kernels").start()
    mark = loading.load_mark(keys[0])
    llm = None if llm_name is None else loading.load_llm(llm_name)
    answers: verify.Answers = {}
    for name, content in contents.items():
        if isinstance(content, AlimarkError):
            answers[name] = content
            continue
        try:
            if len(keys) > 1:
                embedder = getattr(mark, "embedder", None)
                answers[name] = detect_keys(content, keys, embedder=embedder, settings=settings, llm=llm)
                continue
            [answer] = mark.detect_batch([content], settings, llm=llm)
            answers[name] = answer if isinstance(answer, AlimarkError) else [answer]
        except KeyMismatch:
            raise
        except AlimarkError as error:
            answers[name] = error
    return answers


def _contents(names: list[str], key: Key, settings: RandomKeys) -> dict[str, str | AlimarkError]:
    """The text of each file, or why it cannot be tested; texts that are too long are refused before models are loaded."""
    from alimark.core.detection.preparing import check_searchable
    from alimark.core.detection.settings import DetectionSettings
    from alimark.core.schemes.registry import aligns

    contents: dict[str, str | AlimarkError] = {}
    for name in names:
        try:
            contents[name] = text = texts.read_text(name)
            if len(text) > _LONG and aligns(key.scheme):
                check_searchable(text, key, DetectionSettings.of(settings))
        except AlimarkError as error:
            contents[name] = error
        except OSError as error:
            contents[name] = RecordError(error.strerror or str(error))
    return contents


def _warm_up(key: Key, settings: RandomKeys) -> None:
    from alimark.core.detection.pipeline import warm_up
    from alimark.core.detection.settings import DetectionSettings

    warm_up(key, DetectionSettings.of(settings))


def _print(answers: verify.Answers, fpr: float, as_json: bool, alignment: bool | None) -> int:
    """Prints the answers and returns the exit status."""
    sound = {name: answer for name, answer in answers.items() if not isinstance(answer, AlimarkError)}
    if as_json:
        records = [_record(name, answer, fpr) for name, answer in answers.items()]
        show.print_json(records[0] if len(records) == 1 else records)
    else:
        detections.print_detections(sound, fpr, alignment)
    for name, answer in answers.items():
        if isinstance(answer, AlimarkError):
            show.note(f"error: {answer}" if str(answer).startswith(name) else f"error: {name}: {answer}")
    if len(sound) < len(answers):
        return 2
    return 0 if all(ranked[0].verdict(fpr) == "found" for ranked in sound.values()) else 1


def _record(name: str, answer: list[Detection] | AlimarkError, fpr: float) -> Record:
    if isinstance(answer, AlimarkError):
        return {"file": name, "error": str(answer)}
    others = {"next_best": [detection.record() for detection in answer[1:]]} if answer[1:] else {}
    return {"file": name, **answer[0].report(fpr), **others}
