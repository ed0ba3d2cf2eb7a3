"""`alimark serve`: tokens, imported keys, and records that are exported and deleted."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from alimark.cli.main import app
from alimark.core.keys.key import Key
from alimark.errors import AlimarkError
from alimark.testing import StandInEmbedder


def alimark(*words: str) -> Result:
    return CliRunner().invoke(app, ["serve", *words])


def test_the_operators_commands(tmp_path: Path) -> None:
    from alimark.serve.database import Store
    from alimark.serve.records import Record, RecordLog, sha256

    data = tmp_path / "data"
    key = Key.generate(embedder=StandInEmbedder())
    key.save(tmp_path / "key.json")
    assert isinstance(alimark("--data", str(data), "--llm", "nothing-of-the-kind").exception, AlimarkError)
    token = alimark("token", "--role", "detect", "--role", "generate", "--data", str(data))
    assert token.stdout.startswith("alm_"), token.stderr
    assert token.stdout.strip() not in (data / "alimark.db").read_bytes().decode("latin-1")
    assert isinstance(alimark("token", "--role", "king", "--data", str(data)).exception, AlimarkError)
    taken = alimark("import", str(tmp_path / "key.json"), "--tenant", "acme", "--data", str(data))
    assert taken.stdout.strip() == key.id
    assert Key.load(data / "keys" / f"{key.id}.json") == key
    assert "already" in str(alimark("import", str(tmp_path / "key.json"), "--data", str(data)).exception)
    Key.generate(scheme="semstamp", embedder=StandInEmbedder()).save(tmp_path / "rival.json")
    refused = alimark("import", str(tmp_path / "rival.json"), "--data", str(data)).exception
    assert "alimark keys, not semstamp" in str(refused)
    assert "options follow the command" in str(alimark("--port", "9", "export").exception)
    fields = ("detect", "tk1", "", key.id, sha256("A text."), 1.5)
    store = Store(f"sqlite:///{data / 'alimark.db'}")
    store.do(RecordLog(store).writing([Record(*fields, at=1.0), Record(*fields)]))
    store.close()
    assert len(alimark("export", "--data", str(data)).stdout.splitlines()) == 2
    assert alimark("prune", "--days", "1", "--data", str(data)).stdout == "1 records deleted\n"
