"""`alimark audit`: one result per document, resumed by id, and outputs that are never overwritten."""

import json
from pathlib import Path

import pytest

from alimark import Key
from alimark.cli.demo import HUMAN
from alimark.testing import StandInEmbedder
from commands import Run
from fixed_texts import unmarked

EMBEDDER = StandInEmbedder()


def documents(tmp_path: Path, marked_file: Path) -> Path:
    path = tmp_path / "docs.jsonl"
    records = [
        {"id": "a", "text": marked_file.read_text(), "source": "web"},
        {"id": "b", "text": HUMAN},
        {"id": "c", "text": ""},
        {"text": "No id here. But two sentences."},
        {"id": "e", "text": 7},
    ]
    lines = [json.dumps(record) for record in records]
    path.write_text("\n".join([*lines[:2], "{broken", *lines[2:], "[]"]) + "\n")
    return path


def test_every_document_is_answered_once(run: Run, key_file: Path, marked_file: Path, tmp_path: Path) -> None:
    source, output = documents(tmp_path, marked_file), tmp_path / "found.jsonl"
    done = run("audit", "-k", key_file, source, "--output", output, "--json")
    assert done.status == 1
    summary = json.loads(done.out)
    assert (summary["documents"], summary["failed"], summary["found_at_fdr"]) == (7, 4, 1)
    assert set(summary["time_shares"]) == {"reading", "splitting", "embedding", "alignment", "writing"}
    answers = {record["id"]: record for record in map(json.loads, output.read_text().splitlines())}
    assert answers["a"]["p_value"] < 0.01
    assert list(answers["a"])[:2] == ["id", "statement"]
    assert answers["a"]["statement"].startswith(
        "The mark of this key is in the text. By chance a text would look like this"
    )
    assert answers["a"]["input"] == {"source": "web"}
    assert (answers["a"]["found"], answers["a"]["verdict"], answers["b"]["found"]) == (True, "found", False)
    assert answers["a"]["q_value"] == pytest.approx(answers["a"]["p_value"] * 3)
    assert "text" not in answers["a"]
    assert answers["c"]["error"]
    assert sum(name.startswith(f"{source}@") and answer["failed"] for name, answer in answers.items()) == 2
    before = output.read_bytes()
    again = run("audit", "-k", key_file, source, "--output", output, "--json")
    assert json.loads(again.out)["documents_now"] == 0
    assert output.read_bytes() == before


def test_resumes_behind_a_half_written_line(run: Run, key_file: Path, marked_file: Path, tmp_path: Path) -> None:
    source, output = documents(tmp_path, marked_file), tmp_path / "found.jsonl"
    run("audit", "-k", key_file, source, "--output", output)
    whole = output.read_bytes()
    output.write_bytes(whole[:-25])
    run("audit", "-k", key_file, source, "--output", output)
    assert output.read_bytes() == whole


def test_another_key_or_the_input_itself_as_output(run: Run, key_file: Path, marked_file: Path, tmp_path: Path) -> None:
    source, output = documents(tmp_path, marked_file), tmp_path / "found.jsonl"
    run("audit", "-k", key_file, source, "--output", output)
    Key.generate(embedder=EMBEDDER, decision="hard").save(tmp_path / "other.json")
    done = run("audit", "-k", tmp_path / "other.json", source, "--output", output)
    assert (done.status, "was written under key" in done.err) == (2, True)
    before = source.read_bytes()
    assert run("audit", "-k", key_file, source, "--output", source).status == 2
    assert run("audit", "-k", key_file, source, "--output", tmp_path / "x.jsonl.gz").status == 2
    assert source.read_bytes() == before


def test_foreign_output_is_left_alone(run: Run, key_file: Path, marked_file: Path, tmp_path: Path) -> None:
    output = tmp_path / "notes.txt"
    for notes in ("my notes\n", "my notes without an end", '{"a": 1}\n', '{"a": 1}', "{not json}\n"):
        output.write_text(notes)
        done = run("audit", "-k", key_file, documents(tmp_path, marked_file), "--output", output)
        assert done.status == 2
        assert output.read_text() == notes


def test_positional_inputs_of_every_kind(run: Run, key_file: Path, marked_file: Path, tmp_path: Path) -> None:
    source, output = documents(tmp_path, marked_file), tmp_path / "found.jsonl"
    done = run("audit", "-k", key_file, source, "-o", output, "--allow-failed")
    assert done.status == 0
    assert done.out.startswith(
        "The mark is in 1 of the 3 documents. Of those named, at most 5% are expected to be wrong."
    )
    assert "4 documents could not be tested." in done.out
    assert "/docs.jsonl@" in done.out, "documents that failed are named"
    assert len(output.read_text().splitlines()) == 7
    letters = tmp_path / "letters"
    letters.mkdir()
    for name, text in {"a.txt": marked_file.read_text(), "b.md": HUMAN, "c.bin": "x"}.items():
        (letters / name).write_text(text)
    both = tmp_path / "both.jsonl"
    done = run("audit", "-k", key_file, letters, source, "-o", both, "--json")
    assert (done.status, json.loads(done.out)["documents"]) == (1, 9), done.err
    assert f"1 file of unknown kind is skipped: {letters / 'c.bin'}" in done.err
    answers = {record["id"]: record for record in map(json.loads, both.read_text().splitlines())}
    first = json.loads(output.read_text().splitlines()[0])
    assert answers["a"] | {"q_value": 0} == first | {"q_value": 0}
    assert answers[str(letters / "a.txt")]["p_value"] == first["p_value"]
    assert "text" not in answers[str(letters / "a.txt")]
    again = run("audit", "-k", key_file, letters, source, "-o", both, "--json")
    assert json.loads(again.out)["documents_now"] == 0


def test_one_file_has_one_number_and_one_name(
    run: Run, key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether `detect` tests a document or `audit`, and whichever way the path goes."""
    monkeypatch.chdir(tmp_path)
    for number in range(4):
        Path(f"{number}.txt").write_text(" ".join(unmarked(12, number)))
    done = run(
        "audit", "-k", key_file, "../" + tmp_path.name + "/0.txt", *(f"{n}.txt" for n in range(4)), "-o", "a.jsonl"
    )
    assert done.status == 0
    answers = [json.loads(line) for line in Path("a.jsonl").read_text().splitlines()]
    assert [answer["id"] for answer in answers] == [str(tmp_path / f"{number}.txt") for number in range(4)]
    shown = json.loads(run("detect", "-k", key_file, *(f"{n}.txt" for n in range(4)), "--json").out)
    for name in ("p_value", "score", "statement", "verdict"):
        assert [answer[name] for answer in answers] == [answer[name] for answer in shown], name


def test_text_field(run: Run, key_file: Path, marked_file: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "docs.jsonl", tmp_path / "found.jsonl"
    source.write_text(json.dumps({"id": 1, "body": marked_file.read_text()}) + "\n")
    assert run("audit", "-k", key_file, source, "-o", output, "--text-field", "body").status == 0
    [record] = map(json.loads, output.read_text().splitlines())
    assert record["p_value"] < 0.01
    assert "body" not in record


def test_wrong_options(run: Run, key_file: Path, marked_file: Path, tmp_path: Path) -> None:
    source, output = documents(tmp_path, marked_file), tmp_path / "found.jsonl"
    for words, told in (
        (["-k", key_file, source], "-o found.jsonl"),
        (["-k", key_file, "-o", output], "-o found.jsonl"),
        (["-k", key_file, source, "-o", output, "--fdr", "1"], "false discovery rate"),
        (["-k", key_file, source, "-o", output, "--engine", "ray"], "Ray write into a folder"),
        (["-k", key_file, source, "-o", output, "--engine", "none"], "plain or ray"),
        (["-k", key_file, tmp_path / "none.jsonl", "-o", output], "does not exist"),
        (["-k", key_file, tmp_path, "-o", output], "among the documents"),
        (["-k", key_file, tmp_path / "none", source, "-o", output], "does not exist"),
    ):
        done = run("audit", *words)
        assert done.status == 2, words
        assert told in done.err, words
        assert done.err.startswith("error: ")
        assert not output.exists()
