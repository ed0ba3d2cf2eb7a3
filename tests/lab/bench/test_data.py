"""Data sets: prompts and human texts from files and from what is built in."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from alimark.core.frozen.text.splitting import splitter
from alimark.errors import AlimarkError
from alimark.lab.bench import data
from alimark.lab.bench.data import label, load


def text(number: int, count: int) -> str:
    return " ".join(f"The mayor of town {number} painted the house number {i} in spring." for i in range(count))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rows = [
        {"prompt": "A first prompt.", "natural_text": text(1, 8)},
        {"text": text(2, 9)},
        {"prompt": "A first prompt.", "natural_text": text(3, 8)},
        {"prompt": "Another prompt.", "natural_text": text(1, 8)},
        {"prompt": "A short one.", "natural_text": text(4, 3)},
        {"prompt": "The last prompt.", "natural_text": text(5, 6)},
    ]
    (tmp_path / "some.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return tmp_path / "some.jsonl"


def test_prompts_and_human_texts(file: Path) -> None:
    dataset = load(str(file), 6)
    assert dataset.name == "some"
    assert [item.prompt for item in dataset.items] == [
        "A first prompt.",
        "The mayor of town 2 painted the house number 0 in spring.",
        "The last prompt.",
    ]
    assert [item.human.count(".") for item in dataset.items] == [6, 6, 6]
    assert dataset.items[1].human.startswith("The mayor of town 2 painted the house number 1 ")
    assert (dataset.repeats, dataset.short) == (2, 1)


def test_shorter_ones_may_be_repeated(file: Path) -> None:
    dataset = load(str(file), 6, short="repeat")
    assert [item.human.count(".") for item in dataset.items] == [6, 6, 6, 6]
    assert dataset.short == 0
    assert dataset.items[2].human == f"{text(4, 3)}\n\n{text(4, 3)}"


@pytest.mark.parametrize(
    "short", ["He said hello. She left", "the year 1990", "<P> The king of France </P>", "of Dr. Smith"]
)
def test_a_text_that_ends_without_a_full_stop_can_be_repeated(tmp_path: Path, short: str) -> None:
    """Most answers of Natural Questions end with a tag, and none of them may be lost."""
    path = tmp_path / "short.jsonl"
    path.write_text(json.dumps({"prompt": "Who was it?", "natural_text": short}), "utf-8")
    [item] = load(str(path), 12, short="repeat").items
    assert len(splitter().units(item.human)) == 12


def test_some_of_them(file: Path) -> None:
    assert [item.prompt for item in load(str(file), 6, most=1, skip=1).items] == [
        "The mayor of town 2 painted the house number 0 in spring."
    ]


def test_what_there_is_without_a_file() -> None:
    dataset = load("manual", 12, most=20)
    assert len(dataset.items) == 20
    assert len({item.prompt for item in dataset.items}) == 20


def test_sets_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load_dataset(source: str, **options: Any) -> list[dict[str, str]]:
        asked.append((source, options))
        return [{"text": text(1, 30), "summary_text": text(2, 9), "query": "", "answer": text(3, 9)}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    assert [load(name, 6).items[0].prompt.split()[4] for name in ("c4-train", "booksum-test", "nq")] == [*"123"]
    assert asked[1] == ("kmfoda/booksum", {"split": "test", "streaming": True})


@pytest.fixture
def c4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A text in the layout of PMark's repository, which a server on this machine serves; its prompt ends in an odd place."""
    pyarrow = pytest.importorskip("pyarrow")
    content = "Dr. Who left the\nhouse.  " + text(6, 8)
    table = pyarrow.table({"text": [content], "prompt": ["Dr."]})
    with pyarrow.ipc.new_stream(str(tmp_path / "c4.arrow"), table.schema) as stream:
        stream.write_table(table)
    monkeypatch.setitem(data.PMARK, "c4", (tmp_path / "c4.arrow").as_uri())
    monkeypatch.setattr(data, "paper_texts", lambda: {"c4": {data.text_hash(content): len("Dr.Wholeftthehouse.")}})
    return content


def test_the_papers_texts_are_pinned() -> None:
    assert [len(texts) for texts in data.paper_texts().values()] == [498, 485, 500]


def test_the_papers_texts_are_known_by_their_hashes(c4: str, tmp_path: Path) -> None:
    [item] = load("c4", 6).items
    assert item.prompt == "Dr. Who left the\nhouse."
    assert text(6, 8).startswith(item.human)
    path = tmp_path / "some.jsonl"
    path.write_text("\n".join(map(json.dumps, [{"text": c4}, {"text": text(7, 9)}])), "utf-8")
    loaded = load(str(path), 6)
    assert (loaded.items[0], len(loaded.items), loaded.papers) == (item, 2, 1)


@pytest.mark.usefixtures("c4")
def test_other_texts_under_the_name_of_the_papers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "paper_texts", lambda: {"c4": {"0" * 12: 3}})
    with pytest.raises(AlimarkError, match="does not hold the texts of the paper"):
        load("c4", 6)
    monkeypatch.setitem(data.PMARK, "c4", "file:///nowhere/c4.arrow")
    with pytest.raises(AlimarkError, match="cannot be read"):
        load("c4", 6)


def test_what_is_wrong(file: Path, tmp_path: Path) -> None:
    with pytest.raises(AlimarkError, match="no data set is named"):
        load("nosuch", 12)
    with pytest.raises(AlimarkError, match="no text of 50 sentences"):
        load(str(file), 50)
    (tmp_path / "odd.jsonl").write_text('{"title": "x"}\n', "utf-8")
    with pytest.raises(AlimarkError, match="neither"):
        load(str(tmp_path / "odd.jsonl"), 2)


def test_labels() -> None:
    assert label("a/b/c4.jsonl.gz") == "c4"
    assert [label("booksum"), label("c4-train")] == ["booksum", "c4-train"]
