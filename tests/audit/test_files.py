"""Files of a corpus: every document is read once for any blocks, format and file system, in bounded memory."""

import gzip
import itertools
import json
import random
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alimark.audit.files import CorpusDocument, find, plan, read
from alimark.errors import AlimarkError, RecordError

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
fs_library = pytest.importorskip("pyarrow.fs")


def documents(*locations: object, block_bytes: int = 100, limit: int = 1 << 20) -> list[CorpusDocument]:
    fs, sources, _ = find([str(place) for place in locations])
    blocks = list(plan(fs, sources, block_bytes))
    assert len({block.name for block in blocks}) == len(blocks)
    read_back = (place for block in blocks for place in read(fs, block, ["text", "id"], limit))
    return list(itertools.islice(read_back, 10_000))  # a file may claim to hold any number


def texts(documents: list[CorpusDocument]) -> list[str]:
    return [document.record["text"] for document in documents if not isinstance(document.record, RecordError)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    st.lists(st.text(st.characters(codec="utf-8"), max_size=30), max_size=30),
    st.integers(1, 400),
    st.booleans(),
    st.booleans(),
)
def test_a_line_belongs_to_one_block(tmp_path: Path, contents: list[str], size: int, crlf: bool, ended: bool) -> None:
    end = b"\r\n" if crlf else b"\n"
    data = end.join(json.dumps({"text": document}, ensure_ascii=False).encode() for document in contents) + end * ended
    path = tmp_path / "docs.jsonl"
    path.write_bytes(data or b"\n")
    read_back = documents(path, block_bytes=size)
    assert texts(read_back) == contents
    for document in read_back:  # the place leads back to the document
        line = data[document.place :].split(b"\n", 1)[0]
        assert not isinstance(document.record, RecordError)
        assert json.loads(line) == document.record


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(st.integers(0, 200), st.integers(1, 90), st.integers(1, 3000))
def test_every_row_belongs_to_one_block(tmp_path: Path, rows: int, group: int, size: int) -> None:
    texts_written = [f"Document {i}." for i in range(rows)]
    table = pyarrow.table({"text": texts_written, "other": list(range(rows))})
    parquet.write_table(table, tmp_path / "docs.parquet", row_group_size=group)
    read_back = documents(tmp_path / "docs.parquet", block_bytes=size)
    assert texts(read_back) == texts_written
    assert [document.place for document in read_back] == list(range(rows))


def test_folders_patterns_and_packed_files(tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / ".hidden").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "a"}\n')
    with gzip.open(tmp_path / "in" / "deep" / "b.jsonl.gz", "wt") as file:
        file.write('{"text": "b"}\n' * 3)
    (tmp_path / "in" / "deep" / "c.txt").write_text("c")
    (tmp_path / "in" / "d.bin").write_bytes(b"\0")
    (tmp_path / "in" / ".hidden" / "e.txt").write_text("e")
    assert sorted(texts(documents(tmp_path / "in"))) == ["a", "b", "b", "b", "c"]
    assert find([str(tmp_path / "in")])[2] == [str(tmp_path / "in" / "d.bin")]
    assert texts(documents(tmp_path / "in" / "*" / "*.gz")) == ["b"] * 3
    assert texts(documents(tmp_path / "in" / "a.jsonl", tmp_path / "in" / "deep" / "c.txt")) == ["a", "c"]
    with pytest.raises(AlimarkError, match="does not exist"):
        find([str(tmp_path / "nothing")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(AlimarkError, match="no documents in"):
        find([str(tmp_path / "empty")])


def test_other_file_systems() -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    with memory.open("/alimark-tests/docs.jsonl", "wb") as file:
        file.write(b'{"text": "far away"}\n' * 5)
    assert texts(documents("memory://alimark-tests/docs.jsonl")) == ["far away"] * 5
    with pytest.raises(AlimarkError, match="one file system"):
        find(["memory://alimark-tests/docs.jsonl", "."])
    with pytest.raises(AlimarkError, match="cannot be opened") as caught:
        find(["nothing://somebody:secret@host/x"])
    assert "secret" not in str(caught.value).split(";")[0].split(":", 2)[1]
    with pytest.raises(AlimarkError, match="does not download"):
        find(["https://example.org/page.html"])


def test_poisonous_documents_are_told_and_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    with path.open("wb") as file:
        file.write(b'{"text": "one"}\n' + b'{"text": "')
        for _ in range(64):
            file.write(b"x" * (1 << 20))
        file.write(b'"}\n' + bytes(range(256)).replace(b"\n", b"") + b"\n[1]\n" + b"[" * 9999 + b'\n{"text": "two"}\n')
    tracemalloc.start()
    read_back = documents(path, block_bytes=1 << 20)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert texts(read_back) == ["one", "two"]
    errors = [str(place.record) for place in read_back if isinstance(place.record, RecordError)]
    assert len(errors) == 4
    assert "67,108,877 bytes" in errors[0]
    assert most < 20 << 20  # of 64 MB on one line


def test_files_that_are_not_what_their_names_say(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 it is not")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "c.txt").write_text("long " * 100)
    read_back = documents(tmp_path, limit=100)
    assert [type(document.record) for document in read_back] == [RecordError] * 3
    assert all(document.place == -1 for document in read_back)


def test_a_damaged_page_fails_its_rows_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "docs.parquet"
    written = [f"Document {i}. " + random.Random(i).randbytes(500).hex() for i in range(60)]
    options = {"compression": "zstd", "use_dictionary": False}
    parquet.write_table(pyarrow.table({"text": written}), path, row_group_size=20, **options)
    chunk = parquet.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    start = chunk.data_page_offset + 40
    data[start : start + 2000] = b"\xff" * 2000
    path.write_bytes(data)
    read_back = documents(path, block_bytes=1 << 20)
    assert [document.place for document in read_back] == [*range(21), *range(40, 60)]
    [error] = [document.record for document in read_back if isinstance(document.record, RecordError)]
    assert "from row 20 to row 39" in str(error)


def test_a_file_that_claims_more_rows_than_it_holds_is_one_failure(tmp_path: Path) -> None:
    path = tmp_path / "docs.parquet"
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    parquet.write_table(pyarrow.table({"text": ["One came."] * 100}), path, **options)
    data = path.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = data[start:-8].replace(b"\xc8\x01", b"\x80\x80\x80\x80\x80\x40")  # integers: 100 and 1 << 40
    for pages in (data[:start], data[:200] + b"\xff" * 99 + data[299:start]):
        path.write_bytes(pages + footer + len(footer).to_bytes(4, "little") + b"PAR1")
        read_back = documents(path, block_bytes=1 << 20)
        assert len(read_back) <= 101
        assert isinstance(read_back[-1].record, RecordError)


def test_long_rows_are_not_held_together(tmp_path: Path) -> None:
    path = tmp_path / "docs.parquet"
    options = {"compression": "zstd", "use_dictionary": False, "write_batch_size": 1, "data_page_size": 1 << 20}
    parquet.write_table(pyarrow.table({"text": ["a" * (1 << 20)] * 60}), path, **options)
    usual = pyarrow.default_memory_pool()
    pyarrow.set_memory_pool(counted := pyarrow.proxy_memory_pool(usual))
    try:
        read_back = documents(path, block_bytes=1 << 20, limit=100)
    finally:
        pyarrow.set_memory_pool(usual)
    assert [type(document.record) for document in read_back] == [RecordError] * 60
    assert counted.max_memory() < 10 << 20  # of 60 MB in a file of some kB


def test_a_value_that_is_not_text_fails_its_row_alone(tmp_path: Path) -> None:
    bad = pyarrow.array([b"One.", b"\xff\xfe", b"Three."]).cast(pyarrow.string(), safe=False)
    parquet.write_table(pyarrow.table({"text": bad}), tmp_path / "docs.parquet")
    read_back = documents(tmp_path / "docs.parquet", block_bytes=1 << 20)
    assert [isinstance(document.record, RecordError) for document in read_back] == [False, True, False]
