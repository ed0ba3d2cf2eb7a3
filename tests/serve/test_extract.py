"""Extracts the text of files, including broken and hostile ones."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from services import Running

from alimark.errors import AlimarkError, LimitError, TextError
from alimark.serve.extract import extract

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
MOST = 100_000


def docx(*paragraphs: str, head: str = "") -> bytes:
    rows = "".join(f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>" for text in paragraphs)
    content = f'<?xml version="1.0"?>{head}<w:document xmlns:w="{WORD}"><w:body>{rows}</w:body></w:document>'
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as package:
        package.writestr("word/document.xml", content)
    return file.getvalue()


def pdf(text: str) -> bytes:
    """Returns a minimal pdf file of one page."""
    stream = f"BT /F1 12 Tf 50 700 Td ({text}) Tj ET".encode()
    parts = [
        b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]  # fmt: skip
    file, places = b"%PDF-1.4\n", []
    for number, part in enumerate(parts, 1):
        places.append(len(file))
        file += b"%d 0 obj\n%s\nendobj\n" % (number, part)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    start = len(file)
    return file + b"xref\n0 6\n0000000000 65535 f \n%strailer << /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (
        table,
        start,
    )


def test_supported_formats() -> None:
    assert extract(b"\xef\xbb\xbfOne came.", "txt", MOST) == "One came."
    assert extract(b"# One\n\ncame.", "md", MOST) == "# One\n\ncame."
    page = b"<html><head><title>T</title><script>x()</script></head><body><h1>One</h1><p>came &amp; <b>went</b>.<p>Two.</body>"
    assert extract(page, "html", MOST) == "One\n\ncame & went.\n\nTwo."
    assert extract(docx("One came.", "Two &lt; three."), "docx", MOST) == "One came.\n\nTwo < three."
    assert extract(pdf("One came. Two went."), "pdf", MOST) == "One came. Two went."


BOMB = '<!DOCTYPE w [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'


@pytest.mark.parametrize(
    ("data", "kind", "error"),
    [(b"\xff\xfe\x00", "txt", TextError), (b" \n", "txt", TextError), (b"no zip", "docx", TextError),
     (docx("&b;", head=BOMB), "docx", TextError), (docx("a" * 70_000_000), "docx", TextError), (docx(), "docx", TextError),
     (b"%PDF-1.4 broken", "pdf", TextError), (b"<p>" * 1000, "html", TextError), (b"a" * 200_000, "txt", LimitError),
     (docx("a" * 200_000), "docx", LimitError)],
    ids=["not UTF-8", "blank", "no docx", "entities", "unpacks to 70 MB", "empty docx", "no pdf", "no words", "too long",
         "docx too long"],
)  # fmt: skip
def test_rejected_files(data: bytes, kind: str, error: type[AlimarkError]) -> None:
    with pytest.raises(error):
        extract(data, kind, MOST)


def test_the_endpoint(running: Running) -> None:
    with running.client("detect") as client:
        assert client.post("/v1/extract?kind=docx", content=docx("One came.")).json() == {"text": "One came."}
        assert client.post("/v1/extract?kind=docx", content=b"none").status_code == 422
        assert client.post("/v1/extract?kind=exe", content=b"none").status_code == 422


def test_rewrite_and_attacks(running: Running, tmp_path: Path) -> None:
    text = " ".join(
        f"The mayor opened the {kind} bridge near the hill." for kind in "old new red long low wide dark grey".split()
    )
    with running.client("generate") as client:
        body = {"input": text, "seed": 1, "closeness": 0.5, "mean_closeness": 0.5}
        rewriting = client.post("/v1/rewrite", json=body).json()
        assert "rewritten" in rewriting["outcomes"], rewriting
        assert rewriting["text"] != text
        assert rewriting["key_id"] == running.key.id
        assert rewriting["verdict"] in ("found", "not found", "too short to tell")
        assert rewriting["p_value"] <= rewriting["p_value_before"]
        assert [sentence["cosine"] for sentence in rewriting["moved_most"]] == sorted(rewriting["cosines"])[:2]
        for name in ("delete", "merge", "split", "reorder"):
            attacked = client.post("/v1/attack", json={"name": name, "input": text, "rate": 0.7, "seed": 1})
            assert attacked.status_code == 200, attacked.text
            assert attacked.json()["text"] != text
