"""Small documents that tests build themselves."""

import io
import zipfile
from collections.abc import Sequence

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
    """Returns a PDF file of one page with one line."""
    return pdf_pages([(50, 700, text)])


def pdf_pages(*pages: Sequence[tuple[float, float, str]]) -> bytes:
    """Returns a PDF file; each page is a list of lines with their places in points, in the order in which they are drawn."""
    count = len(pages)
    kids = " ".join(f"{3 + i} 0 R" for i in range(count))
    font = 3 + 2 * count
    parts = ["<< /Type /Catalog /Pages 2 0 R >>", f"<< /Type /Pages /Kids [{kids}] /Count {count} >>"]
    resources = f"/MediaBox [0 0 612 792] /Resources << /Font << /F1 {font} 0 R >> >>"
    parts += [f"<< /Type /Page /Parent 2 0 R /Contents {3 + count + i} 0 R {resources} >>" for i in range(count)]
    for lines in pages:
        stream = "\n".join(f"BT /F1 12 Tf {x} {y} Td ({text}) Tj ET" for x, y, text in lines)
        parts.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    parts.append("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    file, places = b"%PDF-1.4\n", []
    for number, part in enumerate(parts, 1):
        places.append(len(file))
        file += f"{number} 0 obj\n{part}\nendobj\n".encode("latin-1")
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(parts) + 1
    end = b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (size, len(file))
    return file + b"xref\n0 %d\n0000000000 65535 f \n%s" % (size, table) + end
