"""Reads documents of every kind, and refuses broken and hostile ones with a message that says why."""

import email.message
import os
import resource
import sys
import zlib
from pathlib import Path

import pytest

import alimark
from alimark.audit.documents import child
from alimark.audit.documents.encodings import decode
from alimark.audit.documents.reading import read_document
from alimark.errors import AlimarkError, LimitError, TextError
from small_documents import STRICT_WORD, docx, package, pdf, pdf_pages, word_file

MOST = 100_000


def read(data: bytes, kind: str | None = None) -> str:
    return read_document(data, kind=kind, max_characters=MOST).text


def parse(data: bytes, kind: str) -> tuple[str, list[str]]:
    """Reads a document in this process, which is faster."""
    return child.parse(data, kind, MOST)


def test_the_name_the_content_or_the_caller_says_the_kind(tmp_path: Path) -> None:
    (tmp_path / "a.docx").write_bytes(docx("One came."))
    (tmp_path / "b").write_bytes(docx("Two came."))
    (tmp_path / "c.docx").write_bytes(pdf("Three came."))
    assert alimark.read_document(tmp_path / "a.docx") == alimark.Document("One came.", "docx")
    assert alimark.read_document(str(tmp_path / "b")).text == "Two came."
    document = alimark.read_document(tmp_path / "c.docx")
    assert (document.text, document.kind) == ("Three came.", "pdf")
    assert document.notes == ("the file is named or declared as docx, but its content is pdf",)
    with pytest.raises(TextError, match="kinds are txt, md"):
        read_document(b"One", kind="exe")
    with pytest.raises(FileNotFoundError):
        read_document(tmp_path / "nothing")


@pytest.mark.parametrize("address", ["https://example.org/a.html", "HTTP://x", "ftp://x/y.pdf"])
def test_an_address_is_never_fetched(address: str) -> None:
    with pytest.raises(TextError, match="does not download pages; save it"):
        read_document(address)


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Größe und Maß", "utf-8"),
        ("Größe", "utf-8-sig"),
        ("Größe", "utf-16"),
        ("A plain text in English.", "utf-16-le"),
    ],
)
def test_encodings_that_are_sure(text: str, encoding: str) -> None:
    assert decode(text.encode(encoding))[0] == text


def test_an_encoding_is_guessed_and_told() -> None:
    text = "Die Straße führt über den Fluss, und die Brücke ist schön. Später gehen wir zurück. " * 4
    decoded, notes = decode(text.encode("cp1252"))
    assert decoded == text
    assert "is a guess" in notes[0]
    russian = "Сторож маяка медленно поднимался по лестнице. Он думал о море и о своей семье. " * 4
    assert decode(russian.encode("cp1251"))[0] == russian
    broken = text.encode() + b"\xff"
    assert decode(broken) == (text + "\ufffd", ["1 places that are not UTF-8 were replaced"])


# Each of these was read wrongly by the first version, or is what programs really write.
PAGES = {
    "no end of head": ("<!doctype html><title>T</title><p>One came.<p>Two.", "One came.\n\nTwo."),
    "unclosed head": ("<html><head><title>T</title><body><p>One came.</body>", "One came."),
    "unclosed script": ("<p>One came.</p><script>x()", "One came."),
    "table": ("<table><tr><th>A<th>B<tr><td>1<td>2</table>", "A\tB\n\n1\t2"),
    "layout table": ("<table><tr><td><p>One came.<p>Two.</td><td>Three.</table>", "One came.\n\nTwo.\n\nThree."),
    "hidden": ("<p>One<span hidden> not</span><i style='display: none'>x</i> came.<noscript>JS</noscript>", "One came."),
    "inline": ("<p>One <b>ca</b>me &amp; w&shy;ent.<br>Two.", "One came & went.\nTwo."),
    "notes": ("<p>One<sup><a href='#n1'>1</a></sup> came<a class='footnote-ref'>2</a>. x<sup>2</sup>", "One came. x2"),
    "pre": ("<pre>One\n  came.</pre>", "One\ncame."),
    "ruby": ("<p><ruby>漢<rp>(<rt>kan<rp>)</ruby>字", "漢字"),
}  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_web_pages(name: str) -> None:
    page, text = PAGES[name]
    assert parse(page.encode(), "html") == (text, [])


def test_the_article_apart_from_boilerplate() -> None:
    article = "<p>" + "</p><p>".join(f"The keeper lit lamp number {i} and went to bed." for i in range(5)) + "</p>"
    menu = "<ul>" + "".join(f"<li><a href='/{i}'>Topic {i}</a></li>" for i in range(6)) + "</ul>"
    page = f"""<body class="has-sidebar"><header><nav>{menu}</nav><a href="/">The Site</a></header>
      <div class="cookie-banner">We use cookies.</div>{menu}
      <main><article><header><h1>Lamps</h1></header>{article}</article></main>
      <aside>Read more</aside><div class="sidebar">Popular</div><footer>Imprint</footer></body>"""
    text, notes = parse(page.encode(), "html")
    assert text.startswith("Lamps\n\nThe keeper lit lamp number 0")
    assert text.endswith("number 4 and went to bed.")
    assert "left out" in notes[0]
    assert parse(page.replace("<main><article>", "").replace("</article></main>", "").encode(), "html")[0] == text
    everything = f"<body><div class='layout-sidebar'>{article}</div></body>"  # a name that means something else here
    assert "number 4" in parse(everything.encode(), "html")[0]


def test_declared_encodings_of_web_pages() -> None:
    page = '<meta http-equiv="Content-Type" content="text/html; charset=windows-1251"><p>Море и маяк.'
    assert parse(page.encode("cp1251"), "html") == ("Море и маяк.", [])
    wrong = "<meta charset=iso-8859-1><p>Größe."  # declared as Latin-1 but written as UTF-8
    assert parse(wrong.encode(), "html") == ("Größe.", [])


BOX = "<w:txbxContent><w:p><w:r><w:t>In a box.</w:t></w:r></w:p></w:txbxContent>"
WORD_BODY = f"""
<w:p><w:r><w:t xml:space="preserve">One </w:t></w:r><w:del><w:r><w:delText>not </w:delText></w:r></w:del>
  <w:ins><w:r><w:t>came</w:t></w:r></w:ins>
  <w:r><w:footnoteReference w:id="2"/><w:t>.</w:t></w:r><w:r><w:rPr><w:vanish/></w:rPr><w:t>Hidden.</w:t></w:r>
  <w:r><mc:AlternateContent><mc:Choice Requires="wps"><w:drawing>{BOX}</w:drawing></mc:Choice>
    <mc:Fallback><w:pict>{BOX}</w:pict></mc:Fallback></mc:AlternateContent></w:r></w:p>
<w:p><w:pPr><w:rPr><w:del/></w:rPr></w:pPr><w:r><w:t>Two</w:t></w:r></w:p>
<w:p><w:r><w:t xml:space="preserve"> went.</w:t></w:r></w:p>
<w:moveFrom><w:p><w:r><w:t>Moved away.</w:t></w:r></w:p></w:moveFrom>
<w:tbl><w:tr><w:tc><w:p><w:r><w:t>A</w:t></w:r></w:p></w:tc>
  <w:sdt><w:sdtContent><w:tc><w:p><w:r><w:t>B</w:t></w:r></w:p></w:tc></w:sdtContent></w:sdt></w:tr></w:tbl>
<w:sdt><w:sdtPr><w:showingPlcHdr/></w:sdtPr><w:sdtContent><w:p><w:r><w:t>Click here.</w:t></w:r></w:p></w:sdtContent></w:sdt>
<w:p><w:r><w:fldChar/><w:instrText>PAGEREF x</w:instrText><w:t>Self</w:t><w:noBreakHyphen/><w:t>made</w:t><w:br/>
  <w:t>end.</w:t></w:r></w:p>"""
FOOTNOTES = """<w:footnotes xmlns:w="{0}"><w:footnote w:id="-1"><w:p><w:r><w:t>separator</w:t></w:r></w:p></w:footnote>
<w:footnote w:id="2"><w:p><w:r><w:footnoteRef/><w:t>A note.</w:t></w:r></w:p></w:footnote></w:footnotes>"""


@pytest.mark.parametrize("namespace", ["http://schemas.openxmlformats.org/wordprocessingml/2006/main", STRICT_WORD])
def test_word_features(namespace: str) -> None:
    notes = FOOTNOTES.format(namespace)
    text, left_out = parse(word_file(WORD_BODY, namespace=namespace, word__footnotes_xml=notes), "docx")
    expected = ["One came.", "In a box.", "Two went.", "A\tB", "Self-made\nend.", "A note."]
    assert text.split("\n\n") == expected
    assert left_out == ["tracked deletions left out: 2", "runs of hidden text left out: 1"]


ODT = """<office:document-content xmlns:office="o" xmlns:text="t" xmlns:table="b" xmlns:draw="d"><office:body><office:text>
<text:tracked-changes><text:changed-region><text:deletion><text:p>Gone.</text:p></text:deletion></text:changed-region></text:tracked-changes>
<text:h>Title</text:h><text:p>One<text:s text:c="2"/>came<text:note><text:note-citation>1</text:note-citation><text:note-body>
<text:p>A note.</text:p></text:note-body></text:note>.
<draw:frame><draw:text-box><text:p>In a box.</text:p></draw:text-box></draw:frame></text:p>
<table:table><table:table-row><table:table-cell><text:p>A</text:p></table:table-cell><table:table-cell><text:p>B</text:p></table:table-cell>
</table:table-row></table:table><text:list><text:list-item><text:p>Item.</text:p></text:list-item></text:list>
</office:text></office:body></office:document-content>"""


def test_opendocument() -> None:
    data = package(mimetype="application/vnd.oasis.opendocument.text", content_xml=ODT)
    text, left_out = parse(data, "odt")
    assert text.split("\n\n") == ["Title", "One came.", "In a box.", "A\tB", "Item.", "A note."]
    assert left_out == ["tracked deletions left out: 1"]


def epub(**more: str) -> bytes:
    files = {"n": "nav.xhtml", "b": "b%20b.xhtml", "a": "a.xhtml", "c": "c.xhtml"}
    rows = [f'<item id="{key}" href="{name}" media-type="application/xhtml+xml"/>' for key, name in files.items()]
    rows[0] = rows[0].replace("/>", ' properties="nav"/>')
    opf = f"""<package xmlns="x"><manifest>{"".join(rows)}</manifest>
      <spine><itemref idref="n"/><itemref idref="a"/><itemref idref="b"/><itemref idref="c"/></spine></package>"""
    members = {"mimetype": "application/epub+zip", "OPS__book_opf": opf, "OPS__nav_xhtml": "<p>Contents</p>"}
    members["META-INF__container_xml"] = '<c><rootfile full-path="OPS/book.opf"/></c>'
    members["OPS__a_xhtml"] = '<?xml version="1.0"?><html><head><title/></head><body><p>One came.</p></body></html>'
    return package(**members, **{"OPS__b b_xhtml": "<html><body><p>Two came.</p></body></html>"}, **more)


def test_e_books() -> None:
    document = read_document(epub())
    assert document.text == "One came.\n\nTwo came."
    assert document.notes == ("the chapters OPS/c.xhtml are missing in the e-book",)
    with pytest.raises(TextError, match="DRM"):
        read_document(epub(**{"META-INF__encryption_xml": '<e><EncryptionMethod Algorithm="aes"/></e>'}))


def test_rtf() -> None:
    source = (
        rb"{\rtf1\ansi\ansicpg1252{\fonttbl{\f0\fcharset0 Arial;}{\f1\fcharset204 Cyr;}}"
        rb"{\f0 One \'93came\'94{\footnote \'96 A note.}.}\par "
        rb"{\deleted Gone.}{\f1 \'cc\'ee\'f0\'e5.} \u-10179?\u-8704?\par\trowd A\cell B\cell\row"
        rb'{\field{\*\fldinst{HYPERLINK "http://x"}}{\fldrslt Link}}\par'
        rb"{\shp{\*\shpinst{\shptxt In a box.\par}}{\shprslt In a box.}}}"
    )
    text, left_out = parse(source, "rtf")
    assert text.split("\n\n") == ["One “came”.", "Море. 😀", "A\tB", "Link", "– A note.", "In a box."]
    assert left_out == ["tracked deletions left out: 1"]


def test_markdown() -> None:
    source = "---\ntitle: T\n---\n# Lamps {#lamps}\n\nOne *came*[^1]\nand `went`.\n\n- Two.\n- Three.\n\n"
    source += "|A|B|\n|-|-|\n|1|2|\n\n[^1]: A note."
    expected = ["Lamps", "One came and went.", "Two.", "Three.", "A\tB", "1\t2", "A note."]
    assert parse(source.encode(), "md")[0].split("\n\n") == expected


def test_e_mail() -> None:
    message = email.message.EmailMessage()
    message["From"], message["Subject"] = "a@b.c", "Lamps"
    message.set_content("One came \nand went.\n\n> Two came.\n", charset="utf-8", params={"format": "flowed"})
    message.add_alternative("<p>One <b>came</b> and went.", subtype="html")
    message.add_attachment(b"x", maintype="application", subtype="pdf", filename="a.pdf")
    document = read_document(message.as_bytes())
    assert (document.text.strip(), document.kind) == ("One came and went.\n\nTwo came.", "eml")
    assert document.notes == ("the attachment a.pdf was not read; save it, and read it by itself",)
    page = b"From: x@y.z\nMIME-Version: 1.0\nContent-Type: text/html; charset=iso-8859-1\n"
    page += b"Content-Transfer-Encoding: quoted-printable\n\n<p>Gr=F6=DFe.=\n"
    assert parse(page, "eml") == ("Größe.", [])
    hint = b"From: x@y.z\nMIME-Version: 1.0\nContent-Type: multipart/alternative; boundary=b\n\n--b\n\nHTML!\n"
    hint += b"--b\nContent-Type: text/html\n\n<p>One came and went home.\n--b--\n"
    assert parse(hint, "eml") == ("One came and went home.", [])


# PDF


def test_columns_that_are_drawn_line_by_line() -> None:
    left = [f"The left column has its line {i} here" for i in range(6)]
    right = [f"and the right one has line {i} there" for i in range(6)]
    rows = [(x, 600 - 14 * i, column[i]) for i in range(6) for x, column in ((50, left), (320, right))]
    text, _ = parse(
        pdf_pages([(50, 650, "A heading that stands over both of the columns and is rather long"), *rows]), "pdf"
    )
    assert text.split("\n\n") == [
        "A heading that stands over both of the columns and is rather long", " ".join(left + right)
    ]  # fmt: skip


def test_hyphens_running_heads_and_page_breaks() -> None:
    pages = [
        [(50, 760, "The Lamps"), (50, 600, "The keeper of the light"), (50, 40, "Page 1")],
        [(50, 760, "The Lamps"), (50, 600, "climbed the stair-"), (50, 586, "way to the self-"), (50, 40, "Page 2")],
        [(50, 760, "The Lamps"), (50, 600, "made lamp. It was a self-made lamp on a stairway."), (50, 40, "Page 3")],
    ]
    text, notes = parse(pdf_pages(*pages), "pdf")
    assert (
        text
        == "The keeper of the light climbed the stairway to the self-made lamp. It was a self-made lamp on a stairway."
    )
    assert notes == ["running heads and page numbers left out: 6"]


def test_rows_of_a_table_in_a_pdf() -> None:
    rows = [
        (x, 600 - 14 * i, text)
        for i, row in enumerate([("Year", "Copies"), ("1987", "412")])
        for x, text in zip((50, 200), row)
    ]
    assert parse(pdf_pages(rows), "pdf")[0] == "Year\tCopies\n\n1987\t412"


# Hostile files


def packed_pdf(commands: bytes) -> bytes:
    """A PDF file of one page with these drawing commands, packed."""
    packed = zlib.compress(commands, 9)
    head = (
        b"%PDF-1.7\n1 0 obj <</Type/Catalog/Pages 2 0 R>> endobj\n2 0 obj <</Type/Pages/Kids[3 0 R]/Count 1>> endobj\n"
    )
    page = b"3 0 obj <</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]/Contents 4 0 R>> endobj\n"
    stream = b"4 0 obj <</Length %d/Filter/FlateDecode>>\nstream\n%s\nendstream endobj\n" % (len(packed), packed)
    return head + page + stream + b"trailer <</Root 1 0 R>>\n"


ENTITIES = '<!DOCTYPE w [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
EXTERNAL = '<!DOCTYPE w [<!ENTITY a SYSTEM "file:///etc/passwd">]>'


@pytest.mark.parametrize(
    ("data", "kind", "error", "message"),
    [
        (b" \n", "txt", TextError, "no text"), (b"a\0\xff" * 50, "txt", TextError, "not text"),
        (b"no zip", "docx", TextError, "cannot be read as docx"), (docx("&b;", head=ENTITIES), None, TextError, "entities"),
        (docx("&a;", head=EXTERNAL), None, TextError, "entities"),
        (docx(), None, TextError, "no text"), (docx("One")[:-30], None, TextError, "damaged"),
        (b"%PDF-1.4 broken", "pdf", TextError, "damaged"), (pdf(" "), None, TextError, "recognition"),
        (b"<p>" * 1000, "html", TextError, "no text"), (b"a" * 200_000, "txt", LimitError, "100,000 characters"),
        (docx("a" * 200_000), None, LimitError, "100,000 characters"),
        (word_file("<w:sdt><w:sdtContent>" * 3000 + "</w:sdtContent></w:sdt>" * 3000), None, TextError, "nested"),
        (b"<table><tr><td>x" * 40_000, "html", TextError, "elements within each other"),
        (b"<div></b>" * 40_000, "html", TextError, "elements within each other"),
        (packed_pdf(b"BT (a) Tj ET " * 300_000), None, TextError, "unpacks to more than 100 times its size"),
        (b"\xd0\xcf\x11\xe0" + b"\0" * 600, None, TextError, "old Word file"), (b"\x89PNG\r\n", None, TextError, "picture"),
        (package(a_txt="One"), None, TextError, "unpack it"), (package(xl__workbook_xml="x"), None, TextError, "spreadsheet"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_refused_files(data: bytes, kind: str | None, error: type[AlimarkError], message: str) -> None:
    with pytest.raises(error, match=message):
        read(data, kind)


def test_a_bomb_is_not_unpacked() -> None:
    with pytest.raises(TextError, match="unpacks to more than 64 MB"):
        read(docx("a" * 70_000_000))


def test_deep_pages_are_read() -> None:
    assert parse(b"<div>" * 5000 + b"One came.", "html") == ("One came.", [])


@pytest.mark.parametrize(
    ("name", "limit", "data", "kind"),
    [("CPU_SECONDS", 1, b"*a **b " * 1_000_000, "md"), ("MEMORY", 40 << 20, docx("a" * 20_000_000), "docx")],
    ids=["time", "memory"],
)
def test_the_limits_hold(
    name: str, limit: int, data: bytes, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A document that takes too long or too much memory is refused; the limits are lowered to keep the test short."""
    assert hasattr(child, name)
    program = f"import alimark.audit.documents.child as child; child.{name} = {limit}; child.main('{kind}', 1000)"
    (tmp_path / "lowered.py").write_text(program, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setattr("alimark.audit.documents.reading._CHILD", "lowered")
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with pytest.raises(TextError, match=r"took more than|memory"):
        read(data, kind)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 10
