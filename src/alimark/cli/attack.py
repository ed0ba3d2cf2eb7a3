"""alimark attack: rewrites texts as someone would who wants to remove a mark."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from alimark.cli import help, loading, show, texts
from alimark.errors import AlimarkError, AttackError

if TYPE_CHECKING:
    from alimark.lab.attacks import Attack

_POOL = (
    "JSONL (`text` or `natural_text` on each line) or a text file that sentences are taken from. "
    "For insert, the other texts of --input by default."
)


def attack(context: typer.Context) -> None:
    """Rewrite texts as an attacker would: delete, reorder, paraphrase, translate.

    `alimark attack list` lists the attacks, and `alimark attack NAME --help`
    explains one and its settings.

        alimark attack delete --rate 0.3 text.txt > attacked.txt
        alimark attack chat --input texts.jsonl --output attacked.jsonl
    """
    words = context.args or ["--help"]
    status = _app(words[0])(words, prog_name="alimark attack", standalone_mode=False)
    if status:  # after Ctrl-C, newer versions of typer return it where older ones raise
        raise typer.Exit(status)


def _app(wanted: str) -> typer.Typer:
    """Builds the commands of the attacks; where one is named, only that, so that no library of another is imported."""
    from alimark.lab.attacks import attack_class, names

    app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False, help=attack.__doc__)
    app.command("list")(list_attacks)
    for name in [wanted] if wanted in names() else names():
        app.command(name)(_command(attack_class(name)))
    help.formatted([app])
    return app


def list_attacks(as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False) -> None:
    """List the attacks and their settings."""
    from rich.table import Table

    from alimark.lab.attacks import attack_class, names

    kinds = [(name, attack_class(name)) for name in names()]
    if as_json:
        show.print_json({name: {"does": _first_line(kind), "settings": _defaults(kind)} for name, kind in kinds})
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("attack", "by", "what it does", "settings"):
        table.add_column(title, no_wrap=title == "attack")
    for name, kind in kinds:
        main = {key: value for key, value in _defaults(kind).items() if key not in ("batch", "device", "max_tokens")}
        settings = ", ".join(f"{key}={value}" for key, value in main.items() if value != "")
        table.add_row(name, "model" if kind.by_model else "-", _first_line(kind), settings)
    show.print_table(table)


def _first_line(kind: type[Attack]) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]


def _defaults(kind: type[Attack]) -> dict[str, Any]:
    return {name: option.default for name, option in kind.options().items()}


File = Annotated[str | None, typer.Argument(help="Text file; - reads standard input.")]
InputFile = Annotated[Path | None, typer.Option("--input", help="JSONL with a `text` (and an `id`) on each line.")]
Output = Annotated[Path | None, typer.Option("--output", help="JSONL to append to; finished texts are skipped.")]
Seed = Annotated[
    int, typer.Option("--seed", help="Seed; a text gets the same result whatever other texts are in the file.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the whole record, or for --input the counts of the run.")]


def _run(
    attack_of: Callable[[Path | None], Any], *, file: File = None, input_file: InputFile = None, output: Output = None,
    seed: Seed = 0, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Attacks one text, or a JSONL file of them; the keywords are the options that all attacks have."""
    if (file is None) == (input_file is None):
        raise AlimarkError("name a text file (- for standard input), or give --input and --output")
    if (input_file is None) != (output is None):
        raise AlimarkError("--input and --output go together; give both, or neither")
    attack = attack_of(input_file)
    if input_file is not None and output is not None:
        _attack_file(attack, input_file, output, seed, as_json)
    else:
        _attack_text(attack, file or "-", seed, as_json)


def _command(kind: type[Attack]) -> Callable[..., None]:
    """Makes the command of an attack: the fields of its class become options."""
    takes_pool = any(option.name == "pool" for option in fields(kind))  # type: ignore[arg-type]
    hints, shared = get_type_hints(kind), [*inspect.signature(_run, eval_str=True).parameters.values()][1:]
    parameters = [
        inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        *shared,
        *(
            _parameter(name, _option(name, hints[name], option.metadata["help"]), option.default)
            for name, option in kind.options().items()
        ),
    ]
    if takes_pool:
        parameters.append(_parameter("pool", _option("pool", Path | None, _POOL), None))

    def command(context: typer.Context, **values: Any) -> None:
        of_all = {option.name: values.pop(option.name) for option in shared}
        pool = values.pop("pool", None)
        # A preset changes the settings that are not given, so an option that is left out is not passed on as its default.
        settings = {name: value for name, value in values.items() if _is_given(context, name)}

        def attack_of(source: Path | None) -> Attack:
            return kind.of(**settings, **({"pool": _pool(kind, pool, source)} if takes_pool else {}))

        _run(attack_of, **of_all)

    command.__doc__ = inspect.getdoc(kind)
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _is_given(context: typer.Context, name: str) -> bool:
    """Whether an option is on the command line, rather than left at its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _option(name: str, kind: Any, help_text: str) -> Any:
    words = name.replace("_", "-")
    return Annotated[kind, typer.Option(f"--{words}/--no-{words}" if kind is bool else f"--{words}", help=help_text)]


def _pool(kind: type[Attack], pool: Path | None, source: Path | None) -> tuple[str, ...]:
    """The texts that an attack takes sentences from."""
    from alimark.core._util.files import read_text
    from alimark.core.text.human_text import read_texts

    if pool is not None and pool.suffix not in (".jsonl", ".gz"):
        return (read_text(pool),)
    if pool is not None:
        return tuple(read_texts(pool))
    if source is None or kind.name == "copy-paste":
        raise AlimarkError(f"{kind.name} takes sentences from other texts; name a file of them with --pool")
    return tuple(texts.TextFile(source).texts())


def _attack_text(attack: Attack, file: str, seed: int, as_json: bool) -> None:
    from alimark.lab.attacks import Target
    from alimark.lab.attacks.base import attack_record

    text = texts.read_text(file)
    if not text.strip():
        raise AlimarkError("the text is empty; there is nothing to attack")
    loading.fetch_models(*attack.models)
    [(_, attacked)] = attack.run([Target(text, seed)])
    if as_json:
        show.print_json(attack_record(attack, {"text": text}, file, seed, attacked))
    if attacked.failed:
        raise AttackError(f"{attack.name} failed: {attacked.error}")
    if not as_json:
        typer.echo(attacked.text, nl=not attacked.text.endswith("\n"))
    if attacked.left:
        show.note(
            f"note: {attacked.left} sentences stayed as they were, since the model gave no usable answer for them"
        )


def _attack_file(attack: Attack, source: Path, output: Path, seed: int, as_json: bool) -> None:
    from alimark.core._util.jsonl import JsonlWriter
    from alimark.lab.attacks import Target, seed_for
    from alimark.lab.attacks.base import attack_record, attacked_id, check_resumable

    if output.exists() and output.samefile(source):
        raise AlimarkError("--output must be another file than --input")
    check_resumable(attack, output, seed)
    file = texts.TextFile(source)
    counts: Counter[str] = Counter({"written": 0, "skipped": 0, "failed": 0, "lines": 0})
    with JsonlWriter(output) as writer:
        rows = [row for row in file.rows() if attacked_id(attack, row.id) not in writer.done]
        counts["lines"], counts["skipped"] = file.bad, len(file.order) - len(rows)
        if rows:
            loading.fetch_models(*attack.models)
            with show.progress() as bar:
                task = show.Task(bar, "texts", len(rows))
                targets = [Target(row.record["text"], seed_for(attack.name, seed, row.id)) for row in rows]
                for place, attacked in attack.run(targets):
                    row = rows[place]
                    writer.write(attack_record(attack, row.record, row.id, targets[place].seed, attacked))
                    counts["failed" if attacked.failed else "written"] += 1
                    done = counts["written"] + counts["failed"]
                    task.show(f"{done} of {len(rows)} texts", done)
        writer.arrange([attacked_id(attack, row_id) for row_id in file.order])
    if as_json:
        show.print_json(dict(counts))
    bad = f", {counts['lines']} lines passed over" if counts["lines"] else ""
    show.note(
        f"{counts['written']} texts attacked, {counts['failed']} failed (recorded as such), "
        f"{counts['skipped']} were there already{bad}"
    )
