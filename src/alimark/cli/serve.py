"""alimark serve: the service, and what its operator does beside it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from alimark.cli import loading, show
from alimark.errors import AlimarkError, MissingExtra

if TYPE_CHECKING:
    from alimark.serve.database import Store
    from alimark.serve.settings import Settings

app = typer.Typer(help="Serve marked text and detections over HTTP, with a page to look at them.", add_completion=False)

Data = Annotated[Path | None, typer.Option(help="Folder of keys and records; default: serve/ in alimark's own folder.")]
Config = Annotated[Path | None, typer.Option(help="TOML file of settings; docs/serving.md lists them.")]
Tenant = Annotated[str, typer.Option(help="Whose it is; empty for nobody's in particular.")]


@app.callback(invoke_without_command=True)
def serve(
    context: typer.Context,
    data: Data = None,
    config: Config = None,
    host: Annotated[str | None, typer.Option(help="Address to listen at; loopback by default.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 8765 by default.")] = None,
    llm: Annotated[
        str | None, typer.Option(help="What writes: a model of the store, or openai:http://HOST:PORT/v1#MODEL.")
    ] = None,
) -> None:
    """Run the service until it is told to stop (SIGTERM, Ctrl-C); what it accepted is finished.

        alimark serve init                     # once: a key and an administrator's token
        alimark serve token --role generate --role detect
        alimark serve                          # then open http://127.0.0.1:8765

    Every text that it writes is marked. Put a proxy with TLS in front before you
    let others in: docs/serving.md.
    """
    if context.invoked_subcommand is not None:
        if any(value is not None for value in (data, config, host, port, llm)):
            raise AlimarkError(f"options go behind the verb: alimark serve {context.invoked_subcommand} --data ...")
        return
    _need_extra()
    settings = _settings(data, config, host=host, port=port, llm=llm)
    from alimark.serve.app import run
    from alimark.serve.service import Service

    service = Service(settings, llm=loading.load_llm, embedder=loading.load_embedder)
    if not service.tokens.all():
        service.close()
        raise AlimarkError(f"nobody could use the service yet; run: alimark serve init{_at(data)}")
    if settings.host not in ("127.0.0.1", "::1", "localhost"):
        show.note(f"note: {settings.host} is not loopback, and this is plain HTTP; put a proxy with TLS in front")
    show.note(f"serving at http://{settings.host}:{settings.port}")
    run(service)


@app.command()
def init(data: Data = None, config: Config = None) -> None:
    """Make the database, a first key and a first administrator's token, which is printed this once."""
    from alimark.serve.auth import Tokens
    from alimark.serve.ring import Ring

    settings = _settings(data, config)
    settings.data.mkdir(parents=True, exist_ok=True, mode=0o700)
    store = _store(settings)
    try:
        tokens, ring = Tokens(store), Ring(settings.keys, store)
        if tokens.all():
            raise AlimarkError(f"{settings.data} was set up before; alimark serve token makes further tokens")
        key = ring.create(loading.load_embedder(settings.embedder)) if not ring.all() else ring.all()[0]
        _, secret = tokens.create(["admin"], name="first")
    finally:
        store.close()
    show.note(f"data in {settings.data}, first key {key.id}; the administrator's token, shown this once:")
    typer.echo(secret)


@app.command()
def token(
    role: Annotated[list[str], typer.Option(help="generate, detect or admin; several for several.")],
    data: Data = None,
    config: Config = None,
    tenant: Tenant = "",
    name: Annotated[str, typer.Option(help="What you will know it by.")] = "",
) -> None:
    """Make a token, printed this once; a running service knows it within seconds."""
    from alimark.serve.auth import Tokens

    store = _store(_settings(data, config))
    try:
        made, secret = Tokens(store).create(role, tenant=tenant, name=name)
    finally:
        store.close()
    show.note(f"token {made.id} ({', '.join(made.roles)}), shown this once:")
    typer.echo(secret)


@app.command("import")
def import_key(
    key: Annotated[Path, typer.Argument(help="Key file from `alimark keygen`.")],
    data: Data = None,
    config: Config = None,
    tenant: Tenant = "",
    model: Annotated[str, typer.Option(help="The model it marks; empty for any.")] = "",
) -> None:
    """Put a key that exists on the ring."""
    from alimark.keys.key import Key
    from alimark.serve.ring import Ring

    settings = _settings(data, config)
    store = _store(settings)
    try:
        label = Ring(settings.keys, store).add(Key.load(key), tenant=tenant, model=model)
    finally:
        store.close()
    typer.echo(label.id)


@app.command()
def export(
    data: Data = None,
    config: Config = None,
    since: Annotated[float, typer.Option(help="Seconds since 1970.")] = 0.0,
) -> None:
    """Print all records as JSONL, oldest first."""
    from alimark.serve.records import Book

    store = _store(_settings(data, config))
    try:
        for lines in Book(store).export(since):
            typer.echo(lines, nl=False)
    finally:
        store.close()


@app.command()
def prune(
    days: Annotated[float, typer.Option(help="Delete records older than that.")],
    data: Data = None,
    config: Config = None,
) -> None:
    """Delete old records; a service with `retention_days` does so by itself."""
    from alimark.serve.records import Book

    if days <= 0:
        raise AlimarkError("--days must be more than 0")
    store = _store(_settings(data, config))
    try:
        typer.echo(f"{Book(store).prune(days)} records deleted")
    finally:
        store.close()


def _settings(data: Path | None, config: Path | None, **given: Any) -> Settings:
    from alimark._util.paths import cache_folder
    from alimark.serve.settings import read_settings

    named = {name: value for name, value in given.items() if value is not None}
    if data is not None:
        named["data"] = data
    return read_settings(config, named, default_data=cache_folder() / "serve")


def _store(settings: Settings) -> Store:
    from alimark.serve.database import Store

    return Store(settings.database_url)


def _at(data: Path | None) -> str:
    return "" if data is None else f" --data {data}"


def _need_extra() -> None:
    for library in ("fastapi", "uvicorn", "prometheus_client"):
        if not find_spec(library):
            raise MissingExtra(library, "serve")
