"""The command line as a user meets it: results on stdout, messages on stderr, one-line errors, exit statuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import alimark.detection.pipeline
import alimark.embedding.loading
import alimark.llm
from alimark import Key
from alimark._util.jsonl import JsonlWriter
from alimark.cli import main as cli
from alimark.cli.demo import HUMAN, changed
from alimark.errors import AlimarkError
from alimark.generation.api import GenerationSettings
from alimark.testing import StandInEmbedder, StandInLLM
from commands import Run, command
from single_text import generate

__all__ = ["command"]  # a fixture, used by name

EMBEDDER = StandInEmbedder()


@pytest.fixture
def run(command: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command with the stand-ins in place of weights."""
    monkeypatch.setattr(alimark.embedding.loading, "load_embedder", lambda name, **_: EMBEDDER)
    monkeypatch.setattr(alimark.llm, "load_llm", lambda name, **_: StandInLLM())
    return command


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key.json"
    Key(bytes(range(32)), embedder="stand-in", fingerprint=EMBEDDER.fingerprint).save(path)  # the same in every run
    return path


@pytest.fixture
def marked_file(tmp_path: Path, key_file: Path) -> Path:
    made = generate("A story.", Key.load(key_file), EMBEDDER, StandInLLM(), GenerationSettings(12, 64), seed=1)
    path = tmp_path / "marked.txt"
    path.write_text(made.text, "utf-8")
    return path


def human_file(tmp_path: Path, text: str = HUMAN) -> Path:
    path = tmp_path / "human.txt"
    path.write_text(text, "utf-8")
    return path


class TestKeygen:
    def test_makes_a_key_and_prints_its_id(self, run: Run, tmp_path: Path) -> None:
        done = run("keygen", "-o", tmp_path / "k.json")
        assert done.status == 0
        assert done.out.strip() == Key.load(tmp_path / "k.json").id
        shown = run("keygen", "-o", tmp_path / "k2.json", "--json", "--block-size", 16)
        public = json.loads(shown.out)
        assert public["block_size"] == 16
        assert "secret" not in public
        assert run("keygen", "-o", tmp_path / "k3.json", "--offsets", 16).status == 0
        assert [Key.load(tmp_path / f"k{n}.json").offsets for n in (2, 3)] == [1, 16]

    @pytest.mark.parametrize(
        "options",
        [
            ["--block-size", "65"],
            ["--decision", "firm"],
            ["--scheme", "none"],
            ["--splitter", "none"],
            ["--offsets", "0"],
        ],
    )
    def test_wrong_options(self, run: Run, tmp_path: Path, options: list[str]) -> None:
        done = run("keygen", "-o", tmp_path / "k.json", *options)
        assert done.status == 2
        assert done.err.startswith("error: ")
        assert done.err.count("\n") == 1
        assert not (tmp_path / "k.json").exists()

    def test_never_overwrites(self, run: Run, key_file: Path) -> None:
        before = key_file.read_bytes()
        assert run("keygen", "-o", key_file).status == 2
        assert key_file.read_bytes() == before


class TestDetect:
    def test_found_is_0_and_shows_the_alignment(self, run: Run, key_file: Path, marked_file: Path) -> None:
        done = run("detect", "-k", key_file, marked_file)
        assert done.status == 0
        assert ": found" in done.out
        assert done.out.count("match") >= 8
        assert done.err == ""

    def test_not_found_is_1(self, run: Run, key_file: Path, marked_file: Path, tmp_path: Path) -> None:
        done = run("detect", "-k", key_file, marked_file, human_file(tmp_path, "One short text."))
        assert done.status == 1
        assert "too short to tell" in done.out
        assert "sentences would be needed" in done.out

    def test_json_and_report(self, run: Run, key_file: Path, marked_file: Path, tmp_path: Path) -> None:
        done = run("detect", "-k", key_file, marked_file, "--json", "--report", tmp_path / "r.json", "--draws", 300)
        shown, report = json.loads(done.out), json.loads((tmp_path / "r.json").read_text())
        assert shown["verdict"] == report["verdict"] == "found"
        assert report["draws"] == 300
        assert report["key_id"] == Key.load(key_file).id
        assert base_secret(key_file) not in (tmp_path / "r.json").read_text() + done.out

    def test_standard_input(self, key_file: Path, marked_file: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        with open(marked_file) as file:
            monkeypatch.setattr(sys, "stdin", file)
            assert run("detect", "-k", key_file, "-").status == 0

    def test_a_strict_rate_raises_the_draws(self, run: Run, key_file: Path, marked_file: Path) -> None:
        done = run("detect", "-k", key_file, marked_file, "--fpr", "1e-4", "--json")
        assert json.loads(done.out)["draws"] == 100_000

    def test_whose_key(self, run: Run, key_file: Path, marked_file: Path, tmp_path: Path) -> None:
        folder = tmp_path / "keys"
        folder.mkdir()
        for number in range(5):
            Key.generate(embedder=EMBEDDER, secret=bytes([100 + number]) * 32).save(folder / f"{number}.json")
        done = run("detect", "-k", folder, "-k", key_file, marked_file, "--json")
        found = json.loads(done.out)
        assert found["key_id"] == Key.load(key_file).id
        assert found["keys_tried"] == 6
        assert len(found["next_best"]) == 2

    def test_excerpt(self, run: Run, key_file: Path, marked_file: Path, tmp_path: Path) -> None:
        mixed = human_file(tmp_path, HUMAN + " " + marked_file.read_text() + " " + HUMAN)
        done = run("detect", "-k", key_file, mixed, "--excerpt")
        assert done.status == 0
        assert "passage: sentences 1" in done.out

    @pytest.mark.parametrize(
        ("content", "told"),
        [
            (b"", "no sentence"),
            (b"\xff\xfe\x00bad", "not UTF-8"),
            (b" \n", "no sentence"),
            (b"\xef\xbb\xbf", "no sentence"),
        ],
    )
    def test_bad_files(self, run: Run, key_file: Path, tmp_path: Path, content: bytes, told: str) -> None:
        (tmp_path / "bad.txt").write_bytes(content)
        done = run("detect", "-k", key_file, tmp_path / "bad.txt")
        assert done.status == 2
        assert told in done.err
        assert done.err.count("\n") == 1

    def test_missing_files_and_contradictions(
        self, run: Run, key_file: Path, marked_file: Path, tmp_path: Path
    ) -> None:
        for words in (
            ["-k", key_file, tmp_path / "none.txt"],
            ["-k", tmp_path / "none.json", marked_file],
            ["-k", key_file],
            ["-k", tmp_path / "empty", marked_file],
            ["-k", key_file, marked_file, "--engine", "ray"],
            ["-k", key_file, marked_file, "--restructure", "x,y"],
            ["-k", key_file, marked_file, "--fpr", "0"],
            ["-k", key_file, marked_file, "--null", "mine"],
            ["-k", key_file, marked_file, marked_file, "--report", tmp_path / "r.json"],
        ):
            (tmp_path / "empty").mkdir(exist_ok=True)
            done = run("detect", *words)
            assert done.status == 2, words
            assert done.err.startswith(("error: ", "Usage: ")), words
            assert "Traceback" not in done.err

    def test_one_bad_file_of_several(self, run: Run, key_file: Path, marked_file: Path, tmp_path: Path) -> None:
        (tmp_path / "empty[b].txt").write_text("")
        done = run("detect", "-k", key_file, marked_file, tmp_path / "empty[b].txt")
        assert done.status == 2
        assert ": found" in done.out
        assert "empty[b].txt: the text holds no sentence" in done.err
        odd = tmp_path / "a[draft].txt"
        odd.write_text(marked_file.read_text())
        assert "a[draft].txt: found" in run("detect", "-k", key_file, odd).out.replace("\n", "")

    def test_the_unexpected_is_an_error_and_not_a_verdict(
        self, run: Run, key_file: Path, marked_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: object) -> None:
            raise ZeroDivisionError("oh")

        monkeypatch.setattr(alimark.detection.pipeline, "prepare", broken)
        done = run("detect", "-k", key_file, marked_file)
        assert done.status == 2
        assert "unexpected ZeroDivisionError" in done.err
        assert run("detect", "--no-such-option").status == 2
        assert run("detect", "-k", key_file, marked_file, "--draws", 50).status == 2

    def test_debug_shows_the_traceback(self, run: Run) -> None:
        assert "Traceback" in run("detect", "--debug", "-k", "no-such-key", "x.txt").err
        assert "Traceback" not in run("detect", "-k", "no-such-key", "x.txt").err

    def test_a_readable_key_is_warned_of(self, run: Run, key_file: Path, marked_file: Path) -> None:
        key_file.chmod(0o644)
        done = run("detect", "-k", key_file, marked_file)
        assert done.status == 0
        assert done.err.startswith("warning: others can read")

    def test_a_key_of_another_embedder(self, run: Run, tmp_path: Path, marked_file: Path) -> None:
        Key.generate(embedder=StandInEmbedder(32)).save(tmp_path / "other.json")
        done = run("detect", "-k", tmp_path / "other.json", marked_file)
        assert done.status == 2
        assert "use the embedder that the key names" in done.err

    def test_windows_line_ends(self, run: Run, key_file: Path, marked_file: Path) -> None:
        lines = marked_file.read_text().replace(". ", ".\r\n")
        marked_file.write_bytes(lines.encode())
        assert run("detect", "-k", key_file, marked_file).status == 0


def texts(lines: bytes) -> list[tuple[str, str]]:
    return [(record["id"], record["text"]) for record in map(json.loads, lines.splitlines())]


def base_secret(key_file: Path) -> str:
    return str(json.loads(key_file.read_text())["secret"])


class TestAudit:
    def documents(self, tmp_path: Path, marked_file: Path) -> Path:
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

    def test_every_document_is_answered_once(self, run: Run, key_file: Path, marked_file: Path, tmp_path: Path) -> None:
        source, output = self.documents(tmp_path, marked_file), tmp_path / "found.jsonl"
        done = run("audit", "-k", key_file, "--input", source, "--output", output, "--json")
        assert done.status == 0
        summary = json.loads(done.out)
        assert (summary["documents"], summary["failed"], summary["found_at_fdr"]) == (7, 4, 1)
        assert set(summary["time_shares"]) == {"splitting", "embedding", "alignment"}
        found = {record["id"]: record for record in map(json.loads, output.read_text().splitlines())}
        assert found["a"]["p_value"] < 0.01
        assert found["a"]["source"] == "web"
        assert "text" not in found["a"]
        assert found["c"]["error"]
        assert found["line-3"]["failed"]
        before = output.read_bytes()
        again = run("audit", "-k", key_file, "--input", source, "--output", output, "--json")
        assert json.loads(again.out)["documents_now"] == 0
        assert output.read_bytes() == before

    def test_resumes_behind_a_half_written_line(
        self, run: Run, key_file: Path, marked_file: Path, tmp_path: Path
    ) -> None:
        source, output = self.documents(tmp_path, marked_file), tmp_path / "found.jsonl"
        run("audit", "-k", key_file, "--input", source, "--output", output)
        whole = output.read_bytes()
        output.write_bytes(whole[:-25])
        run("audit", "-k", key_file, "--input", source, "--output", output)
        assert output.read_bytes() == whole

    def test_repeated_ids_and_odd_numbers(self, run: Run, key_file: Path, tmp_path: Path) -> None:
        source, output = tmp_path / "docs.jsonl", tmp_path / "found.jsonl"
        lines = [
            '{"id": 1, "text": "One here."}',
            '{"id": 1, "text": "Another here."}',
            '{"id": 2, "text": "Three.", "x": NaN}',
            "{}",
            "{}",
        ]
        source.write_text("\n".join(lines))
        for documents_now in (5, 0):
            done = run("audit", "-k", key_file, "--input", source, "--output", output, "--json")
            assert done.status == 0, done.err
            assert json.loads(done.out)["documents_now"] == documents_now
        ids = [json.loads(line)["id"] for line in output.read_text().splitlines()]
        assert ids[:3] == ["1", "1#2", "line-3"]
        assert len(set(ids)) == 5

    def test_enough_draws_for_one_marked_document_among_many(
        self, run: Run, key_file: Path, marked_file: Path, tmp_path: Path
    ) -> None:
        source, output = tmp_path / "docs.jsonl", tmp_path / "found.jsonl"
        texts = [marked_file.read_text(), *(f"Here is text {i}. It has {i} words." for i in range(150))]
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        done = run("audit", "-k", key_file, "--input", source, "--output", output, "--json")
        assert json.loads(done.out)["found_at_fdr"] >= 1

    def test_an_unexpected_fault_is_one_documents_fault(
        self, run: Run, key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = alimark.detection.pipeline.prepare

        def brittle(text: str, *rest: Any) -> Any:
            if "poison" in text:
                raise ZeroDivisionError("never thought of")
            return real(text, *rest)

        monkeypatch.setattr(alimark.detection.pipeline, "prepare", brittle)
        source, output = tmp_path / "docs.jsonl", tmp_path / "found.jsonl"
        source.write_text('{"id": 1, "text": "Good."}\n{"id": 2, "text": "poison"}\n{"id": 3, "text": "Good too."}\n')
        assert run("audit", "-k", key_file, "--input", source, "--output", output).status == 0
        failed = [json.loads(line).get("failed", False) for line in output.read_text().splitlines()]
        assert failed == [False, True, False]

    def test_another_key_or_the_input_itself_as_output(
        self, run: Run, key_file: Path, marked_file: Path, tmp_path: Path
    ) -> None:
        source, output = self.documents(tmp_path, marked_file), tmp_path / "found.jsonl"
        run("audit", "-k", key_file, "--input", source, "--output", output)
        Key.generate(embedder=EMBEDDER).save(tmp_path / "other.json")
        done = run("audit", "-k", tmp_path / "other.json", "--input", source, "--output", output)
        assert (done.status, "was written under key" in done.err) == (2, True)
        before = source.read_bytes()
        assert run("audit", "-k", key_file, "--input", source, "--output", source).status == 2
        assert run("audit", "-k", key_file, "--input", source, "--output", tmp_path / "x.jsonl.gz").status == 2
        assert source.read_bytes() == before

    def test_foreign_output_is_left_alone(self, run: Run, key_file: Path, marked_file: Path, tmp_path: Path) -> None:
        output = tmp_path / "notes.txt"
        for notes in ("my notes\n", "my notes without an end", '{"a": 1}\n', '{"a": 1}', "{not json}\n"):
            output.write_text(notes)
            done = run("audit", "-k", key_file, "--input", self.documents(tmp_path, marked_file), "--output", output)
            assert done.status == 2
            assert output.read_text() == notes

    def test_positional_inputs_of_every_kind(self, run: Run, key_file: Path, marked_file: Path, tmp_path: Path) -> None:
        source, output = self.documents(tmp_path, marked_file), tmp_path / "found.jsonl"
        assert run("audit", "-k", key_file, source, "-o", output).status == 0
        assert len(output.read_text().splitlines()) == 7
        pytest.importorskip("pyarrow")
        letters = tmp_path / "letters"
        letters.mkdir()
        for name, text in {"a.txt": marked_file.read_text(), "b.md": HUMAN, "c.bin": "x"}.items():
            (letters / name).write_text(text)
        both = tmp_path / "both.jsonl"
        done = run("audit", "-k", key_file, letters, source, "-o", both, "--json")
        assert (done.status, json.loads(done.out)["documents"]) == (0, 9), done.err
        assert "1 files of unknown kind" in done.err
        found = {record["id"]: record for record in map(json.loads, both.read_text().splitlines())}
        first = json.loads(output.read_text().splitlines()[0])
        assert found["a"] == first
        assert found[str(letters / "a.txt")]["p_value"] == first["p_value"]
        assert "text" not in found[str(letters / "a.txt")]
        again = run("audit", "-k", key_file, letters, source, "-o", both, "--json")
        assert json.loads(again.out)["documents_now"] == 0

    def test_text_field(self, run: Run, key_file: Path, marked_file: Path, tmp_path: Path) -> None:
        source, output = tmp_path / "docs.jsonl", tmp_path / "found.jsonl"
        source.write_text(json.dumps({"id": 1, "body": marked_file.read_text()}) + "\n")
        assert run("audit", "-k", key_file, source, "-o", output, "--text-field", "body").status == 0
        [record] = map(json.loads, output.read_text().splitlines())
        assert record["p_value"] < 0.01
        assert "body" not in record

    def test_detect_with_an_input_is_a_deprecated_alias(
        self, run: Run, key_file: Path, marked_file: Path, tmp_path: Path
    ) -> None:
        source = self.documents(tmp_path, marked_file)
        words = ["-k", key_file, "--input", source, "--fdr", 0.1, "--json"]
        new = run("audit", *words, "--output", tmp_path / "new.jsonl")
        old = run("detect", *words, f"--output={tmp_path / 'old.jsonl'}")
        assert (old.status, new.status, new.err) == (0, 0, "")
        assert "alimark audit" in old.err
        assert (tmp_path / "old.jsonl").read_bytes() == (tmp_path / "new.jsonl").read_bytes()
        counts = [
            {k: v for k, v in json.loads(done.out).items() if "found" in k or "documents" in k} for done in (old, new)
        ]
        for count in counts:
            count.pop("documents_per_second")
        assert counts[0] == counts[1]

    def test_wrong_options(self, run: Run, key_file: Path, marked_file: Path, tmp_path: Path) -> None:
        source, output = self.documents(tmp_path, marked_file), tmp_path / "found.jsonl"
        for words, told in (
            (["-k", key_file, source], "-o found.jsonl"),
            (["-k", key_file, "-o", output], "-o found.jsonl"),
            (["-k", key_file, source, "-o", output, "--fdr", "1"], "false discovery rate"),
            (["-k", key_file, source, "-o", output, "--engine", "ray"], "write a folder"),
            (["-k", key_file, source, "-o", output, "--engine", "none"], "plain or ray"),
            (["-k", key_file, tmp_path / "none.jsonl", "-o", output], "No such file"),
            (["-k", key_file, tmp_path, "-o", output], "among the documents"),
            (["-k", key_file, tmp_path / "none", "--input", source, "-o", output], "does not exist"),
        ):
            done = run("audit", *words)
            assert done.status == 2, words
            assert told in done.err, words
            assert done.err.startswith("error: ")
            assert not output.exists()

    def test_one_writer_at_a_time(self, tmp_path: Path) -> None:
        with JsonlWriter(tmp_path / "out.jsonl") as writer:
            writer.write({"id": "a"})
            with pytest.raises(AlimarkError, match="another process"):
                JsonlWriter(tmp_path / "out.jsonl")
        (tmp_path / "out.jsonl").write_text('{"id": "a"}')  # whole but for its line end
        with JsonlWriter(tmp_path / "out.jsonl") as writer:
            assert writer.done == {"a"}
            writer.write({"id": "b"})
        assert (tmp_path / "out.jsonl").read_text() == '{"id": "a"}\n{"id": "b"}\n'
        assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


class TestGenerate:
    def test_one_prompt(self, run: Run, key_file: Path) -> None:
        options = ["-k", key_file, "-p", "A day.", "--sentences", 3, "--candidates", 8, "--seed", 4]
        done = run("generate", *options)
        assert done.status == 0
        assert len(done.out.strip()) > 40
        assert "3 sentences" in done.err
        record = json.loads(run("generate", *options, "--json").out)
        assert record["text"] == done.out.strip()
        assert record["seed"] == 4
        assert record["cost"]["candidates"] == 24

    def test_many_prompts_resume_by_id(self, run: Run, key_file: Path, tmp_path: Path) -> None:
        source, output = tmp_path / "prompts.jsonl", tmp_path / "texts.jsonl"
        lines = [
            {"id": 1, "prompt": "One day."},
            {"prompt": "Two days."},
            {"id": 3},
            {"id": 4, "prompt": "Four.", "tag": "x"},
        ]
        source.write_text("".join(json.dumps(line) + "\n" for line in lines))
        words = [
            "-k",
            key_file,
            "--input",
            source,
            "--output",
            output,
            "--sentences",
            2,
            "--candidates",
            4,
            "--seed",
            1,
        ]
        first = run("generate", *words, "--json")
        assert json.loads(first.out) == {"written": 3, "skipped": 0, "failed": 1, "short": 0}
        before = output.read_bytes()
        assert json.loads(run("generate", *words, "--json").out)["written"] == 0
        output.write_bytes(before[: before.index(b"\n") + 20])  # killed in the second line
        run("generate", *words)
        assert texts(output.read_bytes()) == texts(before)
        assert json.loads(output.read_text().splitlines()[2])["tag"] == "x"

    @pytest.mark.parametrize(
        "words",
        [[], ["-p", " "], ["-p", "x", "--input", "y"], ["--input", "y"], ["-p", "x", "--temperature", "0"],
         ["-p", "x", "--sentences", "0"]],
    )  # fmt: skip
    def test_wrong_options(self, run: Run, key_file: Path, words: list[str]) -> None:
        done = run("generate", "-k", key_file, *words)
        assert done.status == 2
        assert done.err.startswith("error: ")

    def test_a_full_disk_keeps_what_is_whole(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "out.jsonl"
        with JsonlWriter(path) as writer:
            writer.write({"id": "a"})
            real = writer._file

            class Full:
                """Takes half of a line, as a full disk does."""

                def __getattr__(self, name: str) -> Any:
                    return getattr(real, name)

                def write(self, data: bytes) -> int:
                    real.write(data[: len(data) // 2])
                    real.flush()
                    raise OSError(28, "No space left on device")

            writer._file = Full()  # type: ignore[assignment]
            with pytest.raises(OSError, match="No space"):
                writer.write({"id": "b", "text": "long" * 100})
        assert path.read_text() == '{"id": "a"}\n'


CHILD = """
import sys, time
import alimark.embedding.loading, alimark.llm
from alimark.testing import StandInEmbedder, StandInLLM
class Slow(StandInLLM):
    def draw(self, *a):
        time.sleep(0.05)
        return super().draw(*a)
alimark.embedding.loading.load_embedder = lambda name, **_: StandInEmbedder()
alimark.llm.load_llm = lambda name, **_: Slow()
from alimark.cli.main import main
sys.argv = ["alimark", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_interrupting_generation_keeps_every_finished_text(
    tmp_path: Path, key_file: Path, sent: int, status: int
) -> None:
    source, output = tmp_path / "prompts.jsonl", tmp_path / "texts.jsonl"
    source.write_text("".join(json.dumps({"id": i, "prompt": f"Day {i}."}) + "\n" for i in range(200)))
    words = ["generate", "-k", str(key_file), "--input", str(source), "--output", str(output), "--sentences", "2",
             "--candidates", "4", "--seed", "1"]  # fmt: skip
    child = subprocess.Popen([sys.executable, "-c", CHILD, *words], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not output.exists() or output.read_bytes().count(b"\n") < 3):
        time.sleep(0.02)
    os.kill(child.pid, sent)
    _, said = child.communicate(timeout=30)
    assert child.returncode == status
    assert b"Traceback" not in said
    assert (b"interrupted; what was finished is kept" in said) == (sent == signal.SIGINT)
    done = output.read_bytes().split(b"\n")[:-1]
    assert len(done) >= 3
    assert [json.loads(line)["id"] for line in done] == [str(i) for i in range(len(done))]


class TestCalibrate:
    def test_rates_and_centre(self, run: Run, key_file: Path, tmp_path: Path) -> None:
        human = tmp_path / "human.jsonl"
        texts = [generate("S.", Key.load(key_file), EMBEDDER, StandInLLM(), GenerationSettings(4, 1), seed=i).text
                 for i in range(40)]  # fmt: skip
        human.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*texts, texts[0]]))
        centre = tmp_path / "centre.json"
        done = run("calibrate", "-k", key_file, "--human", human, "--sentences", "4,3", "--draws", 99, "--fresh",
                   "--keys", 4, "--centring", "--centre-out", centre, "--json")  # fmt: skip
        assert done.status == 0, done.err
        four, three = json.loads(done.out)
        assert four["texts"] + four["repeats"] + four["too_short"] == 41
        assert three["sentences"] == 3
        assert set(four["spread"]) == {"keys", "texts", "as is", "centred"}
        assert all(0 <= share <= 1 for share in four["fresh_keys"]["p"])
        assert run("calibrate", "-k", key_file, "--human", human, "--sentences", 4, "--draws", 99).status == 0
        made = run("keygen", "-o", tmp_path / "centred.json", "--centre", centre, "--embedder", "stand-in")
        assert made.status == 0, made.err
        assert Key.load(tmp_path / "centred.json").centre is not None

    def test_too_few_texts(self, run: Run, key_file: Path, tmp_path: Path) -> None:
        (tmp_path / "h.jsonl").write_text('{"text": "One. Two."}\n')
        assert "at least 20" in run("calibrate", "-k", key_file, "--human", tmp_path / "h.jsonl", "--sentences", 2).err


def test_demo_with_the_stand_ins(run: Run) -> None:
    done = run("demo", "--json", "--candidates", 64)
    assert done.status == 0, done.err
    answers = {answer["text"]: answer["verdict"] for answer in json.loads(done.out)["answers"]}
    assert answers["marked"] == "found"
    assert len(answers) == 4
    assert run("demo", "--candidates", 8).out.count("\n") > 15


def test_the_demos_change_is_a_merge_a_split_and_a_deletion() -> None:
    sentences = [f"This is the sentence number {i}." for i in range(12)]
    assert changed(sentences).count(".") == 12 - 1 + 1 - 1
    assert changed(sentences[:1]) == sentences[0]


def test_a_model_that_is_missing_without_network(tmp_path: Path) -> None:
    key = tmp_path / "key.json"
    Key.generate().save(key)
    (tmp_path / "text.txt").write_text("Some text. And more.")
    environment = os.environ | {"ALIMARK_HOME": str(tmp_path / "home"), "PIP_NO_INDEX": "1"}
    words = [sys.executable, "-m", "alimark", "detect", "-k", str(key), str(tmp_path / "text.txt")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "all-MiniLM-L6-v2" in done.stderr or "all_minilm" in done.stderr
    assert "Traceback" not in done.stderr


def test_python_m_alimark() -> None:
    done = subprocess.run([sys.executable, "-m", "alimark", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"alimark {alimark.__version__}\n")


def test_help_teaches() -> None:
    for words in (
        ["--help"],
        *([verb, "--help"] for verb in ("keygen", "generate", "detect", "audit", "calibrate", "demo", "models")),
    ):
        done = CliRunner().invoke(cli.app, words)
        assert done.exit_code == 0
        assert len(done.output) > 300
    with pytest.raises(AlimarkError):
        CliRunner().invoke(cli.app, ["detect", "-k", "none.json", "x"], catch_exceptions=False)
