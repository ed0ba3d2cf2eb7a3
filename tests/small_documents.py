"""Small documents that tests build themselves."""

from __future__ import annotations

import io
import zipfile

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
STRICT_WORD = "http://purl.oclc.org/ooxml/wordprocessingml/main"


def package(**members: str) -> bytes:
    """Returns a zip archive; in the names, `__` stands for a slash and `_` for a dot."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/").replace("_", "."), content)
    return file.getvalue()


def docx(*paragraphs: str, head: str = "") -> bytes:
    """Returns a Word file of these paragraphs."""
    return word_file("".join(f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>" for text in paragraphs), head=head)


def word_file(body: str, *, head: str = "", namespace: str = WORD, **members: str) -> bytes:
    """Returns a Word file with this XML as body, and with further members as `package` names them."""
    names = f'xmlns:w="{namespace}" xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
    content = f'<?xml version="1.0"?>{head}<w:document {names}><w:body>{body}</w:body></w:document>'
    return package(word__document_xml=content, **members)


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
