"""alimark serve: runs the HTTP service, and manages its tokens, keys and records."""

from __future__ import annotations

from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from alimark.cli import loading, show
from alimark.errors import AlimarkError, LLMError, MissingExtra

if TYPE_CHECKING:
    from alimark.serve.database import Store
    from alimark.serve.settings import Settings

app = typer.Typer(help="Serve marked text and detections over HTTP, with a web page.", add_completion=False)

Data = Annotated[
    Path | None, typer.Option(help="Folder of keys and records.", show_default="serve/ in the data folder of alimark")
]
Config = Annotated[Path | None, typer.Option(help="TOML file of settings; docs/serving.md lists the settings.")]
Tenant = Annotated[str, typer.Option(help="The tenant that it belongs to; empty for all tenants.")]


@app.callback(invoke_without_command=True)
def serve(
    context: typer.Context,
    data: Data = None,
    config: Config = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.", show_default="8765")] = None,
    llm: Annotated[
        str | None,
        typer.Option(
            help="The language model: a name from `alimark models list`, or openai:http://HOST:PORT/v1#MODEL."
        ),
    ] = None,
    strength: Annotated[
        str | None,
        typer.Option(
            help="How strong the mark of written texts is: light, standard or strong; replaces `strength` and `candidates` of "
            "the settings. `alimark generate --help` says what each costs.",
            show_default="standard",
        ),
    ] = None,
) -> None:
    """Run the service until SIGTERM or Ctrl-C; requests that it accepted are finished first.

        alimark serve init                     # once: a key and a token for each role
        alimark serve                          # then open http://127.0.0.1:8765

    Every text that it writes is marked. Put a proxy with TLS in front of it
    before others use it over a network; see docs/serving.md.
    """
    if context.invoked_subcommand is not None:
        if {data, config, host, port, llm, strength} != {None}:
            raise AlimarkError(
                f"options follow the command; write: alimark serve {context.invoked_subcommand} --data ..."
            )
        return
    settings = _settings(data, config, host=host, port=port, llm=llm, strength=strength)
    from alimark.serve.app import run
    from alimark.serve.service import Service

    service = Service(settings, llm=loading.load_llm, embedder=loading.load_embedder)
    if not service.tokens.all():
        service.close()
        raise AlimarkError(f"the service has no token yet, so nobody can use it; run: alimark serve init{_at(data)}")
    if settings.host not in ("127.0.0.1", "::1", "localhost"):
        show.note(f"note: {settings.host} is not loopback, and this is plain HTTP; put a proxy with TLS in front")
    url = _url(settings)

    def ready() -> None:
        show.note(f"serving at {url}: the page is there, and {url}/docs lists the endpoints; for example:")
        show.note(_curl(settings, "TOKEN"))
        show.note(
            f"TOKEN is one that alimark serve init printed, or a new one: alimark serve token --role generate{_at(data)}"
        )

    show.note("loading the models and compiling what detects")
    run(service, ready)


@app.command()
def init(data: Data = None, config: Config = None) -> None:
    """Create the database, a first key and a token for each role. The tokens are printed only once.

    Standard output has one line for each token: its roles and its secret. One token has the roles generate and detect, which
    the page takes to write a text and to check it.
    """
    from alimark.core.llm import check_llm
    from alimark.serve.auth import ROLES, Tokens
    from alimark.serve.ring import Ring

    settings = _settings(data, config)
    try:
        check_llm(settings.llm)  # before the tokens are printed, which is done only once
    except LLMError as error:  # such as a server that is not up yet
        show.note(f"note: {error}")
    settings.data.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _store(settings) as store:
        tokens, ring = Tokens(store), Ring(settings.keys, store)
        if tokens.all():
            raise AlimarkError(f"{settings.data} was set up before; to make more tokens, run: alimark serve token")
        marking = ring.in_use() or [ring.create(loading.load_embedder(settings.embedder))]
        groups: list[list[str]] = [*([str(role)] for role in ROLES), ["generate", "detect"]]
        secrets = {",".join(roles): tokens.create(roles, name=f"first {' and '.join(roles)}")[1] for roles in groups}
    show.note(f"data in {settings.data}; new text is marked with the key {marking[0].id}")
    show.note("a token for each role and one that writes and checks, shown only once:")
    for role, secret in secrets.items():
        typer.echo(f"{role} {secret}")
    show.note(f"\nstart the service with: alimark serve{_at(data)}\nand then ask it in another terminal:\n")
    show.note(_curl(settings, secrets["generate"]))
    show.note(f"\nor open {_url(settings)} in a browser; the page takes the token generate,detect")


def _url(settings: Settings) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{settings.port}"


def _curl(settings: Settings, token: str) -> str:
    """A command that asks the service for an answer, which appears sentence by sentence."""
    body = '{"messages": [{"role": "user", "content": "Why is the sky blue?"}], "max_tokens": 60, "stream": true}'
    return (
        f"curl -N {_url(settings)}/v1/chat/completions -H 'Authorization: Bearer {token}' "
        f"-H 'Content-Type: application/json' -d '{body}'"
    )


@app.command()
def token(
    role: Annotated[list[str], typer.Option(help="generate, detect or admin; may be repeated.")],
    data: Data = None,
    config: Config = None,
    tenant: Tenant = "",
    name: Annotated[str, typer.Option(help="A name to recognise the token by.")] = "",
) -> None:
    """Create a token. It is printed only once; a running service accepts it within seconds."""
    from alimark.serve.auth import Tokens

    with _store(_settings(data, config)) as store:
        created, secret = Tokens(store).create(role, tenant=tenant, name=name)
    show.note(f"token {created.id} ({', '.join(created.roles)}), shown only once:")
    typer.echo(secret)


@app.command("import")
def import_key(
    key: Annotated[Path, typer.Argument(help="Key file from `alimark keygen`.")],
    data: Data = None,
    config: Config = None,
    tenant: Tenant = "",
    model: Annotated[str, typer.Option(help="The language model that it marks; empty for all.")] = "",
    activate: Annotated[
        bool, typer.Option("--activate", help="Mark new text with it from now on. Otherwise it only detects.")
    ] = False,
) -> None:
    """Add a key file to the keys of the service, and print its id. Which key marks new text changes only with --activate."""
    from alimark.core.keys.key import Key
    from alimark.serve.ring import Ring

    settings = _settings(data, config)
    with _store(settings) as store:
        ring, loaded = Ring(settings.keys, store), Key.load(key)
        if activate and loaded.id in {label.id for label in ring.all()}:
            label = ring.activate(loaded.id)
        else:
            label = ring.add(loaded, tenant=tenant, model=model, activate=activate)
    typer.echo(label.id)
    command = f"alimark serve import {key} --activate{_at(data)}"
    use = "new text is marked with it" if activate else f"it only detects; to mark new text with it, run: {command}"
    show.note(use)


@app.command()
def rotate(
    keys: Annotated[
        list[str] | None,
        typer.Argument(help="Ids of the keys to rotate.", show_default="every key that marks new text"),
    ] = None,
    data: Data = None,
    config: Config = None,
) -> None:
    """Replace keys by new ones, and print their ids. Texts of the old keys are still found.

    A new key has another secret and the parameters of the old key. A running
    service marks new text with it within seconds, and detects with both.
    """
    from alimark.serve.ring import Ring

    settings = _settings(data, config)
    with _store(settings) as store:
        ring = Ring(settings.keys, store)
        names = keys or [label.id for label in ring.in_use()]
        if not names:
            raise AlimarkError(
                f"no key marks new text, so there is nothing to rotate; run: alimark serve init{_at(data)}"
            )
        for name in names:
            new = ring.rotate(name, ring.key(name).embedder)
            typer.echo(new.id)
            show.note(f"key {name} was replaced by key {new.id}; it marks no new text, and its texts are still found")


@app.command()
def export(
    data: Data = None,
    config: Config = None,
    since: Annotated[float, typer.Option(help="Only records from this time on, in seconds since 1970.")] = 0.0,
) -> None:
    """Print all records as JSONL, oldest first."""
    from alimark.serve.records import RecordLog

    with _store(_settings(data, config)) as store:
        for lines in RecordLog(store).export(since):
            typer.echo(lines, nl=False)


@app.command()
def prune(
    days: Annotated[float, typer.Option(help="Delete records that are older than so many days.")],
    data: Data = None,
    config: Config = None,
    clock_is_right: Annotated[
        bool,
        typer.Option("--clock-is-right", help="Delete although the clock is much later than at the last deletion."),
    ] = False,
) -> None:
    """Delete old records. A service with the setting `retention_days` does so itself."""
    from alimark.serve.records import RecordLog

    if days <= 0:
        raise AlimarkError("--days must be greater than 0")
    with _store(_settings(data, config)) as store:
        typer.echo(f"{RecordLog(store).prune(days, clock_is_right=clock_is_right)} records deleted")


def _settings(data: Path | None, config: Path | None, **given: object) -> Settings:
    from alimark.core._util.paths import cache_folder, data_folder

    for library in ("fastapi", "uvicorn", "prometheus_client"):
        if not find_spec(library):
            raise MissingExtra(library, "serve")
    from alimark.serve.settings import read_settings

    named = {name: value for name, value in {**given, "data": data}.items() if value is not None}
    settings = read_settings(config, named, default_data=data_folder() / "serve")
    if settings.data == data_folder() / "serve":
        _move(cache_folder() / "serve", settings.data)
    return settings


def _move(old: Path, new: Path) -> None:
    """Moves an installation out of the cache folder, which people clear, unless there is one in the new place."""
    import sqlite3

    if new.exists() or not old.exists():
        return
    try:
        if (database := old / "alimark.db").exists():
            with closing(sqlite3.connect(database, timeout=0)) as connection:
                connection.execute("PRAGMA journal_mode=DELETE")  # fails while a service has the database open
        new.parent.mkdir(parents=True, exist_ok=True)
        old.rename(new)
    except (OSError, sqlite3.Error) as error:
        raise AlimarkError(
            f"keys and records belong in {new} and could not be moved there from {old} ({error}); if a service uses them, stop "
            "it first, and if the folders are on two disks, move them yourself"
        ) from None
    show.note(f"keys and records were moved from {old}, where they are lost when the cache is cleared, to {new}")


def _store(settings: Settings) -> closing[Store]:
    from alimark.serve.database import Store

    return closing(Store(settings.database_url))


def _at(data: Path | None) -> str:
    return "" if data is None else f" --data {data}"
