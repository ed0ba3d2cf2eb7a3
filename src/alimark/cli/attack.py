"""alimark attack: rewrite texts the way those do who want a mark gone."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from alimark.cli import loading, show
from alimark.cli.texts import TextFile
from alimark.errors import AlimarkError, AttackError, RecordError

if TYPE_CHECKING:
    from alimark._util.jsonl import Record
    from alimark.attacks import Attack, Attacked, Target

_KEPT = ("prompt", "scheme", "key_id")
"""What a record of an attack takes over from the record of the text."""


def attack(context: typer.Context) -> None:
    """Rewrite texts as an attacker would: delete, reorder, paraphrase, translate.

    `alimark attack list` tells which attacks there are, and
    `alimark attack NAME --help` what each does and how it is set.

        alimark attack delete --rate 0.3 text.txt > attacked.txt
        alimark attack chat --input texts.jsonl --output attacked.jsonl
    """
    words = context.args or ["--help"]
    _app(words[0])(words, prog_name="alimark attack", standalone_mode=False)


def _app(wanted: str) -> typer.Typer:
    """Built when it is needed: no other verb pays for the attacks, and one attack not for the others."""
    from alimark.attacks import attack_class, names

    app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False, help=attack.__doc__)
    app.command("list")(list_attacks)
    for name in [wanted] if wanted in names() else names():
        app.command(name)(_command(attack_class(name)))
    return app


def list_attacks(as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False) -> None:
    """List the attacks and their settings."""
    from rich.table import Table

    from alimark.attacks import attack_class, names

    found = [(name, attack_class(name)) for name in names()]
    if as_json:
        show.print_json({name: {"does": _first_line(kind), "settings": _defaults(kind)} for name, kind in found})
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("attack", "by", "what it does", "settings"):
        table.add_column(title, no_wrap=title == "attack")
    for name, kind in found:
        main = {key: value for key, value in _defaults(kind).items() if key not in ("batch", "device", "max_tokens")}
        settings = ", ".join(f"{key}={value}" for key, value in main.items() if value != "")
        table.add_row(name, "model" if kind.by_model else "-", _first_line(kind), settings)
    show.stdout().print(table)


def _first_line(kind: type[Attack]) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]


def _options(kind: type[Attack]) -> list[Any]:
    return [one for one in fields(kind) if "help" in one.metadata]  # type: ignore[arg-type]


def _defaults(kind: type[Attack]) -> dict[str, Any]:
    return {one.name: one.default for one in _options(kind)}


def _takes_pool(kind: type[Attack]) -> bool:
    return any(one.name == "pool" for one in fields(kind))  # type: ignore[arg-type]


def _command(kind: type[Attack]) -> Callable[..., None]:
    """The verb of one attack: its settings are options, read off its fields."""
    hints = get_type_hints(kind)
    parameters = [
        *_common(),
        *(_parameter(one.name, hints[one.name], one.default, one.metadata["help"]) for one in _options(kind)),
    ]
    if _takes_pool(kind):
        parameters.append(_parameter("pool", Path | None, None, _POOL))

    def command(**given: Any) -> None:
        common = {name: given.pop(name) for name in ("file", "input_file", "output", "seed", "as_json")}
        pool = given.pop("pool", None)
        _run(kind, given, pool, **common)

    command.__doc__ = inspect.getdoc(kind)
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


_POOL = (
    "JSONL (`text`, `natural_text` or `original` on each line) or a text file that other sentences come from. "
    "For insert the other texts of --input by default."
)


def _parameter(name: str, kind: Any, default: Any, help_text: str) -> inspect.Parameter:
    option = typer.Option(f"--{name.replace('_', '-')}", help=help_text)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


def _common() -> list[inspect.Parameter]:
    argument = typer.Argument(help="Text file; - reads standard input.")
    rows: list[tuple[str, Any, Any, Any]] = [
        ("file", str | None, None, argument),
        (
            "input_file",
            Path | None,
            None,
            typer.Option("--input", help="JSONL with a `text` (and an `id`) on each line."),
        ),
        ("output", Path | None, None, typer.Option("--output", help="JSONL to append to; finished texts are skipped.")),
        ("seed", int, 0, typer.Option("--seed", help="Same seed, same text, whatever else is in the file.")),
        ("as_json", bool, False, typer.Option("--json", help="Print the whole record, or what a run did.")),
    ]
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])
        for name, kind, default, option in rows
    ]


def _run(
    kind: type[Attack],
    settings: dict[str, Any],
    pool: Path | None,
    *,
    file: str | None,
    input_file: Path | None,
    output: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    if (file is None) == (input_file is None):
        raise AlimarkError("name a text file (- for standard input), or give --input and --output")
    if (input_file is None) != (output is None):
        raise AlimarkError("--input and --output go together")
    if _takes_pool(kind):
        settings["pool"] = _pool(kind, pool, input_file)
    wanted = kind(**settings)
    if input_file is not None and output is not None:
        _many(wanted, input_file, output, seed, as_json)
    else:
        _one(wanted, file or "-", seed, as_json)


def _pool(kind: type[Attack], pool: Path | None, source: Path | None) -> tuple[str, ...]:
    """Texts that sentences may come from."""
    from alimark._util.files import read_text
    from alimark.calibration.human_text import read_texts

    if pool is not None and pool.suffix not in (".jsonl", ".gz"):
        return (read_text(pool),)
    if pool is not None:
        return tuple(read_texts(pool))
    if source is None or kind.name == "copy-paste":
        raise AlimarkError(f"{kind.name} takes sentences from other texts; name a file of them with --pool")
    return tuple(TextFile(source).texts())


def _one(wanted: Attack, file: str, seed: int, as_json: bool) -> None:
    from alimark._util.files import read_text
    from alimark.attacks import Target

    text = show.read_stdin() if file == "-" else read_text(file)
    if not text.strip():
        raise AlimarkError("the text is empty; there is nothing to attack")
    loading.fetch_models(*wanted.models)
    [(_, made)] = wanted.run([Target(text, seed)])
    if as_json:
        show.print_json(_record(wanted, {"text": text}, file, seed, made))
    if made.failed:
        raise AttackError(f"{wanted.name} failed: {made.error}")
    if not as_json:
        typer.echo(made.text, nl=not made.text.endswith("\n"))
    if made.left:
        show.note(f"note: {made.left} sentences stayed as they were, for want of a usable answer")


def _label(wanted: Attack) -> str:
    rate = wanted.settings.get("rate")
    return wanted.name if rate is None else f"{wanted.name}@{rate:g}"


def _record(wanted: Attack, source: Record, own: str, seed: int, made: Attacked) -> Record:
    """One line of JSONL: the text or why there is none, and all that it takes to make it again."""
    record: Record = {"id": f"{own}/{_label(wanted)}", "parent_id": own}
    record |= {name: source[name] for name in _KEPT if name in source}
    record |= {"text": made.text} if not made.failed else {"failed": True, "error": made.error}
    record |= {"original": source["text"], "attack": {"name": wanted.name, "settings": wanted.settings}, "seed": seed}
    if wanted.by_model:
        record["cost"] = {"tries": made.tries, "tokens": made.tokens}
    if made.rejected:
        record["rejected"] = list(made.rejected)
    if made.left:
        record["left"] = made.left
    return record


def _many(wanted: Attack, source: Path, output: Path, seed: int, as_json: bool) -> None:
    from alimark._util.jsonl import JsonlWriter
    from alimark.attacks import Target, seed_for

    if output.exists() and output.samefile(source):
        raise AlimarkError("--output must be another file than --input")
    _check_same(wanted, output, seed)
    label = _label(wanted)
    texts = TextFile(source)
    counts: Counter[str] = Counter({"written": 0, "skipped": 0, "failed": 0, "lines": 0})
    with JsonlWriter(output) as writer, show.progress() as bar:
        rows = [row for row in texts.rows() if f"{row.id}/{label}" not in writer.done]
        counts["lines"], counts["skipped"] = texts.bad, len(texts.order) - len(rows)
        if rows:
            task, ticker = bar.add_task("texts", total=len(rows)), show.Ticker()

            def targets() -> Iterator[Target]:
                for row in rows:
                    yield Target(row.record["text"], seed_for(wanted.name, seed, row.id))

            loading.fetch_models(*wanted.models)
            for place, made in wanted.run(targets()):
                row = rows[place]
                writer.write(_record(wanted, row.record, row.id, seed_for(wanted.name, seed, row.id), made))
                counts["failed" if made.failed else "written"] += 1
                bar.advance(task)
                ticker.tick(f"{counts['written'] + counts['failed']} of {len(rows)} texts")
        writer.arrange([f"{own}/{label}" for own in texts.order])
    if as_json:
        show.print_json(dict(counts))
    bad = f", {counts['lines']} lines passed over" if counts["lines"] else ""
    show.note(
        f"{counts['written']} texts attacked, {counts['failed']} failed (recorded as such), "
        f"{counts['skipped']} were there already{bad}"
    )


def _check_same(wanted: Attack, output: Path, seed: int) -> None:
    """A file that goes on must go on with the same settings."""
    from alimark._util.jsonl import read_jsonl
    from alimark.attacks import seed_for

    if not output.exists():
        return
    for line, record in read_jsonl(output):
        if isinstance(record, RecordError) or not str(record.get("id", "")).endswith(f"/{_label(wanted)}"):
            continue
        same = record.get("attack") == {"name": wanted.name, "settings": wanted.settings}
        if not same or record.get("seed") != seed_for(wanted.name, seed, str(record.get("parent_id"))):
            raise RecordError(
                f"{output}:{line} was made by {wanted.name} with other settings, pool or seed; choose another output file"
            )
