"""Makes documents of ten kinds with the programs that people use: LibreOffice, pandoc, Chromium, and Word's XML by hand.

Used by `documents.py`. Every maker gets a `Content` and writes one file; what a reader should get out of it is
`Content.expected`, up to white space.
"""

from __future__ import annotations

import email.message
import email.policy
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

TABLE = (("Year", "Copies"), ("1987", "412"), ("1994", "1,040"))
NOTES = ("Printed in the second edition.", "The archive has the letter.")


@dataclass(frozen=True)
class Content:
    """What a document says: paragraphs of a marked text, and around them a title, a table and notes."""

    paragraphs: tuple[str, ...]
    title: str = ""
    table: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    """Footnotes; note i belongs to paragraph i."""

    front: str = ""
    """What the program that makes the document puts before it."""

    @property
    def expected(self) -> str:
        """The text in reading order, with notes at the end."""
        rows = ["\t".join(row) for row in self.table]
        return "\n\n".join([self.front, *([self.title] if self.title else []), *self.paragraphs, *rows, *self.notes])


@dataclass
class Maker:
    """A document to make: a kind, a name, what stands around the marked text, and the function that writes the file."""

    kind: str
    name: str
    write: Callable[[Content, Path], None]
    title: bool = False
    table: bool = False
    notes: bool = False
    tool: str = ""
    """The program that is needed."""
    front: str = ""

    def content(self, paragraphs: Sequence[str]) -> Content:
        return Content(
            tuple(paragraphs),
            "A Report on the Lamps" if self.title else "",
            TABLE if self.table else (),
            NOTES if self.notes else (),
            self.front,
        )


MAKERS: list[Maker] = []


def maker(
    kind: str,
    name: str,
    *,
    needs: str = "",
    front: str = "",
    title: bool = False,
    table: bool = False,
    notes: bool = False,
) -> Callable[[Callable[[Content, Path], None]], Callable[[Content, Path], None]]:
    """Adds a function to the makers."""

    def add(write: Callable[[Content, Path], None]) -> Callable[[Content, Path], None]:
        MAKERS.append(Maker(kind, name, write, title, table, notes, needs, front))
        return write

    return add


def run(*command: str | Path) -> None:
    """Runs a program; its messages are shown only where it fails."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=180, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr[-500:]}")


def office(source: Path, ending: str, target: Path) -> None:
    """Converts a file with LibreOffice."""
    run("soffice", "--headless", "--convert-to", ending, "--outdir", source.parent, source)
    shutil.move(source.with_suffix(f".{ending.partition(':')[0]}"), target)


def pandoc(source: Path, target: Path, *options: str) -> None:
    """Converts a file with pandoc, by the endings of both."""
    run("pandoc", source, "-o", target, "--standalone", *options)


def chromium(page: str, target: Path, *options: str) -> None:
    """Prints a web page to PDF with Chromium."""
    source = target.with_suffix(".source.html")
    source.write_text(page, encoding="utf-8")
    run(
        "chromium", "--headless", "--no-sandbox", "--disable-gpu", *options, f"--print-to-pdf={target}", source.as_uri()
    )
    source.unlink()


# Parts of documents


def html_body(content: Content, before: str = "p") -> str:
    """The content as HTML, each paragraph in an element of this name."""
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in content.table)
    return (
        (f"<h1>{escape(content.title)}</h1>" if content.title else "")
        + "".join(f"<{before}>{escape(text)}</{before}>\n" for text in content.paragraphs)
        + (f"<table>{rows}</table>" if rows else "")
    )


def word_paragraph(text: str, more: str = "") -> str:
    return f'<w:p><w:r><w:t xml:space="preserve">{escape(text)}</w:t></w:r>{more}</w:p>'


def word_body(content: Content) -> str:
    """The content as the body of a Word document."""
    references = [f'<w:r><w:footnoteReference w:id="{i + 1}"/></w:r>' for i in range(len(content.notes))]
    parts = [word_paragraph(content.title)] if content.title else []
    parts += [
        word_paragraph(text, references[i] if i < len(references) else "") for i, text in enumerate(content.paragraphs)
    ]
    rows = ("".join(f"<w:tc><w:tcPr/>{word_paragraph(cell)}</w:tc>" for cell in row) for row in content.table)
    table = "".join(f"<w:tr>{row}</w:tr>" for row in rows)
    parts += (
        ['<w:tbl><w:tblPr/><w:tblGrid><w:gridCol w:w="3000"/><w:gridCol w:w="3000"/></w:tblGrid>' + table + "</w:tbl>"]
        if table
        else []
    )
    return "".join(parts)


TRANSITIONAL = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
STRICT = "http://purl.oclc.org/ooxml/wordprocessingml/main"
_RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
_TYPES = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_NAMES = (
    'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006" xmlns:v="urn:schemas-microsoft-com:vml" '
    'xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape" '
    'xmlns:wp="http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing" '
    'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
)


@dataclass
class WordFile:
    """The parts of a Word document that is written by hand."""

    body: str
    notes: tuple[str, ...] = ()
    comments: tuple[str, ...] = ()
    namespace: str = TRANSITIONAL
    members: dict[str, str] = field(default_factory=dict)

    def save(self, target: Path) -> None:
        word = f'xmlns:w="{self.namespace}"'
        members = {
            "word/document.xml": f"<w:document {word} {_NAMES}><w:body>{self.body}<w:sectPr/></w:body></w:document>"
        }
        parts = {"footnotes": self.notes, "comments": self.comments}
        for part, texts in parts.items():
            single = part.removesuffix("s")
            inner = "".join(
                f'<w:{single} w:id="{i + 1}">{word_paragraph(text)}</w:{single}>' for i, text in enumerate(texts)
            )
            members |= {f"word/{part}.xml": f"<w:{part} {word}>{inner}</w:{part}>"} if texts else {}
        links = "".join(
            f'<Relationship Id="r{part}" Type="{_TYPES}/{part}" Target="{part}.xml"/>'
            for part, texts in parts.items()
            if texts
        )
        members["word/_rels/document.xml.rels"] = f'<Relationships xmlns="{_RELATIONS}">{links}</Relationships>'
        members["_rels/.rels"] = (
            f'<Relationships xmlns="{_RELATIONS}"><Relationship Id="r1" Type="{_TYPES}/officeDocument" '
            'Target="word/document.xml"/></Relationships>'
        )
        kind = "application/vnd.openxmlformats-officedocument.wordprocessingml"
        overrides = f'<Override PartName="/word/document.xml" ContentType="{kind}.document.main+xml"/>'
        overrides += "".join(
            f'<Override PartName="/word/{part}.xml" ContentType="{kind}.{part}+xml"/>'
            for part, texts in parts.items()
            if texts
        )
        members["[Content_Types].xml"] = (
            '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Default Extension="rels" '
            'ContentType="application/vnd.openxmlformats-package.relationships+xml"/><Default Extension="xml" '
            f'ContentType="application/xml"/>{overrides}</Types>'
        )
        write_zip(target, {name: f'<?xml version="1.0" encoding="UTF-8"?>{text}' for name, text in members.items()})


def write_zip(target: Path, members: dict[str, str]) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)


def word_source(content: Content, target: Path) -> Path:
    """A plain Word document beside the target, for programs that convert it."""
    source = target.with_name(f"{target.stem}.source.docx")
    WordFile(word_body(content), content.notes).save(source)
    return source


def by_pandoc(content: Content, target: Path, *options: str) -> None:
    """Has pandoc convert a Word document."""
    source = word_source(content, target)
    pandoc(source, target, *options)
    source.unlink()


def odt_body(content: Content) -> str:
    """The content as OpenDocument elements."""
    note = (
        '<text:note text:note-class="footnote"><text:note-citation>1</text:note-citation><text:note-body><text:p>{}</text:p>'
        "</text:note-body></text:note>"
    )
    parts = [f'<text:h text:outline-level="1">{escape(content.title)}</text:h>'] if content.title else []
    for i, text in enumerate(content.paragraphs):
        mark = note.format(escape(content.notes[i])) if i < len(content.notes) else ""
        parts.append(f'<text:p text:style-name="P">{escape(text)}{mark}</text:p>')
    cell = "<table:table-cell><text:p>{}</text:p></table:table-cell>"
    rows = ("".join(cell.format(escape(text)) for text in row) for row in content.table)
    table = "".join(f"<table:table-row>{row}</table:table-row>" for row in rows)
    parts += (
        [f'<table:table table:name="T"><table:table-column table:number-columns-repeated="2"/>{table}</table:table>']
        if table
        else []
    )
    return "".join(parts)


_ODF = "urn:oasis:names:tc:opendocument:xmlns"
ODF_NAMES = " ".join(f'xmlns:{name}="{_ODF}:{name}:1.0"' for name in "office style text table svg".split()) + (
    f' xmlns:draw="{_ODF}:drawing:1.0" xmlns:fo="{_ODF}:xsl-fo-compatible:1.0"'
)


@dataclass
class Layout:
    """How LibreOffice sets a text."""

    width: float = 21.0
    height: float = 29.7
    margin: float = 2.0
    columns: int = 1
    hyphens: bool = False
    head: str = ""
    foot: bool = False
    size: int = 12
    indent: str = "0cm"
    space: str = "0.25cm"


def fodt(body: str, layout: Layout | None = None) -> str:
    """An OpenDocument file without an archive."""
    layout = layout or Layout()
    column = '<style:column style:rel-width="1*"/>' * layout.columns
    number = "<text:p>Page <text:page-number>1</text:page-number> of <text:page-count>9</text:page-count></text:p>"
    hyphens = 'fo:hyphenate="true" fo:hyphenation-remain-char-count="2" fo:hyphenation-push-char-count="2"'
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<office:document {ODF_NAMES} office:version="1.2" office:mimetype="application/vnd.oasis.opendocument.text">
<office:automatic-styles>
<style:style style:name="P" style:family="paragraph"><style:paragraph-properties fo:margin-bottom="{layout.space}"
  fo:text-indent="{layout.indent}" fo:text-align="justify"/>
<style:text-properties fo:font-size="{layout.size}pt" fo:language="en" fo:country="US" {hyphens if layout.hyphens else ""}/>
</style:style>
<style:style style:name="F" style:family="graphic"><style:graphic-properties style:wrap="none"/></style:style>
<style:style style:name="S" style:family="section"><style:section-properties><style:columns fo:column-count="{layout.columns}"
  fo:column-gap="0.6cm">{column if layout.columns > 1 else ""}</style:columns></style:section-properties></style:style>
<style:page-layout style:name="L"><style:page-layout-properties fo:page-width="{layout.width}cm"
  fo:page-height="{layout.height}cm" fo:margin="{layout.margin}cm"/>
<style:header-style/><style:footer-style/></style:page-layout></office:automatic-styles>
<office:master-styles><style:master-page style:name="Standard" style:page-layout-name="L">
{f"<style:header><text:p>{layout.head}</text:p></style:header>" if layout.head else ""}
{f"<style:footer>{number}</style:footer>" if layout.foot else ""}</style:master-page></office:master-styles>
<office:body><office:text><text:section text:style-name="S" text:name="x">{body}</text:section></office:text></office:body>
</office:document>"""


def by_office(content: Content, target: Path, ending: str, layout: Layout | None = None, body: str = "") -> None:
    """Has LibreOffice convert an OpenDocument file."""
    source = target.with_name(f"{target.stem}-source.fodt")
    source.write_text(fodt(body or odt_body(content), layout), encoding="utf-8")
    office(source, ending, target)
    source.unlink()


def odt_box(paragraphs: Sequence[str]) -> str:
    """Paragraphs in a text box."""
    inner = "".join(f"<text:p>{escape(text)}</text:p>" for text in paragraphs)
    return (
        '<draw:frame draw:style-name="F" text:anchor-type="paragraph" svg:width="12cm"><draw:text-box fo:min-height="1cm">'
        f"{inner}</draw:text-box></draw:frame>"
    )


def markdown_escaped(text: str) -> str:
    """A paragraph as Markdown, in which no sign has a special meaning."""
    text = re.sub(r"^(\d+)([.)])", r"\1\\\2", text)
    text = re.sub(r"^([-+])", r"\\\1", text)
    return "".join(f"\\{sign}" if sign in "`*_{}[]<>#|~&^$@" else sign for sign in text)


def halves(content: Content) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The first and the second half of the paragraphs."""
    middle = (len(content.paragraphs) + 1) // 2
    return content.paragraphs[:middle], content.paragraphs[middle:]


# 1. Web pages

_MENU = (
    "<ul>"
    + "".join(f'<li><a href="/{name}">{name}</a></li>' for name in "Home News Science Weather Contact".split())
    + "</ul>"
)


@maker("html", "article with menus", title=True)
def _(content: Content, target: Path) -> None:
    target.write_text(
        f"""<!doctype html><html lang="en"><head><meta charset="utf-8">
<title>The Daily Lamp</title><style>p {{ color: red }}</style></head>
<body class="has-sidebar"><header><a href="/">The Daily Lamp</a><nav>{_MENU}</nav></header>
<div id="cookie-consent">We use cookies to improve your visit.</div>
<main><article>{html_body(content)}</article></main>
<aside><h2>Read also</h2>{_MENU}</aside><footer>Imprint, privacy and terms. <script>track()</script></footer></body></html>""",
        encoding="utf-8",
    )


@maker("html", "no end tags")
def _(content: Content, target: Path) -> None:
    paragraphs = "\n".join(f"<p>{escape(text)}" for text in content.paragraphs)
    target.write_text(
        f"<!DOCTYPE html>\n<title>Lamps</title>\n<link rel=stylesheet href=a.css>\n{paragraphs}", encoding="utf-8"
    )


@maker("html", "declared windows-1252, a table", table=True, title=True)
def _(content: Content, target: Path) -> None:
    head = '<html><head><meta http-equiv="Content-Type" content="text/html; charset=windows-1252"></head>'
    target.write_text(f"{head}<body>{html_body(content)}</body></html>", encoding="cp1252", errors="xmlcharrefreplace")


@maker("html", "pandoc, footnotes", notes=True, needs="pandoc")
def _(content: Content, target: Path) -> None:
    by_pandoc(content, target, "--metadata", "title= ")


@maker("html", "LibreOffice export", table=True, needs="soffice")
def _(content: Content, target: Path) -> None:
    by_office(content, target, "html")


@maker("html", "elements without meaning, undeclared windows-1252")
def _(content: Content, target: Path) -> None:
    cells = "".join(f"<div>{escape(text)}</div><br>" for text in content.paragraphs)
    menu = "".join(f'<div><a href="{name}">{name}</a></div>' for name in "Home News Science Weather Café".split())
    page = f'<table width=100%><tr><td class=nav>{menu}</td><td><font face="Arial">{cells}</font></td></tr></table>'
    target.write_text(page, encoding="cp1252", errors="xmlcharrefreplace")


# 2. PDF by LibreOffice


def _office_pdf(name: str, layout: Layout, title: bool = False, table: bool = False, notes: bool = False) -> None:
    @maker("pdf by LibreOffice", name, needs="soffice", title=title, table=table, notes=notes)
    def _(content: Content, target: Path) -> None:
        by_office(content, target, "pdf", layout)


_office_pdf("one column, a title", Layout(), title=True)
_office_pdf("two columns, hyphenated", Layout(columns=2, hyphens=True), title=True)
_office_pdf("running heads, small pages", Layout(12, 10, 1.2, head="The Lamps of the Bay", foot=True))
_office_pdf("footnotes", Layout(14.8, 21, 1.8), notes=True)
_office_pdf(
    "hyphenated, indented paragraphs", Layout(11, 16, 1.5, hyphens=True, indent="0.6cm", space="0cm", foot=True)
)
_office_pdf("three columns, a table", Layout(29.7, 21, 1.5, columns=3, hyphens=True, size=11, foot=True), table=True)


# 3. PDF by Chromium


def _printed(name: str, style: str, *options: str, head: str = "", title: bool = False) -> None:
    @maker("pdf by Chromium", name, needs="chromium", title=title)
    def _(content: Content, target: Path) -> None:
        start = f"<!doctype html><html lang=en><meta charset=utf-8><title>Lamps</title><style>{style}</style>"
        chromium(f"{start}{head}{html_body(content)}", target, *options)


_PLAIN = "--no-pdf-header-footer"
_printed("with the browser's head and foot", "", title=True)
_printed("plain", "body { font-family: serif }", _PLAIN, title=True)
_printed("two columns", "body { columns: 2; text-align: justify; font-size: 13px }", _PLAIN, title=True)
_printed("small pages with the browser's head", "@page { size: 12cm 14cm }")
_printed("hyphenated columns", "body { columns: 3; hyphens: auto; text-align: justify; font-size: 12px }", _PLAIN)
_printed(
    "a head on every page",
    "@page { size: A6 } #h { position: fixed; top: -8mm } body { margin: 10mm 0 }",
    _PLAIN,
    head="<div id=h>The Lamps of the Bay</div>",
)


# 4. Word files by LibreOffice and pandoc


@maker("docx by programs", "LibreOffice", title=True, needs="soffice")
def _(content: Content, target: Path) -> None:
    by_office(content, target, "docx")


@maker("docx by programs", "LibreOffice, footnotes, running heads", notes=True, needs="soffice")
def _(content: Content, target: Path) -> None:
    by_office(content, target, "docx", Layout(head="The Lamps of the Bay", foot=True))


@maker("docx by programs", "LibreOffice, two columns, a table", table=True, needs="soffice")
def _(content: Content, target: Path) -> None:
    by_office(content, target, "docx", Layout(columns=2, hyphens=True))


@maker("docx by programs", "LibreOffice, a text box", needs="soffice")
def _(content: Content, target: Path) -> None:
    first, second = halves(content)
    body = "".join(f"<text:p>{escape(text)}</text:p>" for text in first[:-1])
    body += f"<text:p>{escape(first[-1])}{odt_box(second)}</text:p>"
    by_office(content, target, "docx", body=body)


@maker("docx by programs", "pandoc, footnotes", title=True, notes=True, needs="pandoc")
def _(content: Content, target: Path) -> None:
    by_pandoc(content, target)


@maker("docx by programs", "pandoc from HTML", title=True, table=True, needs="pandoc")
def _(content: Content, target: Path) -> None:
    source = target.with_suffix(".source.html")
    source.write_text(f"<html><body>{html_body(content)}</body></html>", encoding="utf-8")
    pandoc(source, target)
    source.unlink()


# 5. Word files by hand


def _box(paragraphs: Sequence[str]) -> str:
    """A text box as Word writes it: in the new form and, for old programs, again in the old form."""
    inner = "<w:txbxContent>" + "".join(word_paragraph(text) for text in paragraphs) + "</w:txbxContent>"
    return (
        '<w:r><mc:AlternateContent><mc:Choice Requires="wps"><w:drawing><wp:anchor><a:graphic><a:graphicData>'
        f"<wps:wsp><wps:txbx>{inner}</wps:txbx></wps:wsp></a:graphicData></a:graphic></wp:anchor></w:drawing></mc:Choice>"
        f"<mc:Fallback><w:pict><v:shape><v:textbox>{inner}</v:textbox></v:shape></w:pict></mc:Fallback>"
        "</mc:AlternateContent></w:r>"
    )


@maker("docx by hand", "text boxes")
def _(content: Content, target: Path) -> None:
    first, second = halves(content)
    body = "".join(word_paragraph(text) for text in first[:-1]) + word_paragraph(first[-1], _box(second))
    WordFile(body).save(target)


@maker("docx by hand", "tracked changes")
def _(content: Content, target: Path) -> None:
    author = 'w:id="1" w:author="A" w:date="2024-01-01T00:00:00Z"'
    gone = f"<w:del {author}><w:r><w:delText>This was deleted, and nobody misses it. </w:delText></w:r></w:del>"
    body = ""
    for text in content.paragraphs:
        words = text.split(" ")
        start, end = (escape(" ".join(part)) for part in (words[:4], words[4:]))
        run_of = '<w:r><w:t xml:space="preserve">{}</w:t></w:r>'
        body += f"<w:p>{gone}<w:ins {author}>{run_of.format(start + ' ')}</w:ins>{run_of.format(end)}</w:p>"
    moved = word_paragraph("This paragraph was moved away from here.")
    WordFile(body + f"<w:moveFrom {author}>{moved}</w:moveFrom>").save(target)


@maker("docx by hand", "strict OOXML", title=True, table=True, notes=True)
def _(content: Content, target: Path) -> None:
    WordFile(word_body(content), content.notes, namespace=STRICT).save(target)


@maker("docx by hand", "a table that holds the text")
def _(content: Content, target: Path) -> None:
    cells = (f"<w:tc>{word_paragraph(text)}{word_paragraph('')}</w:tc>" for text in content.paragraphs)
    inner = "".join(f"<w:tr>{cell}</w:tr>" for cell in cells)
    WordFile(f"<w:tbl><w:tr><w:tc><w:tbl>{inner}</w:tbl><w:p/></w:tc></w:tr></w:tbl><w:p/>").save(target)


@maker("docx by hand", "footnotes and comments", title=True, notes=True)
def _(content: Content, target: Path) -> None:
    mark = '<w:commentRangeStart w:id="1"/><w:commentRangeEnd w:id="1"/><w:r><w:commentReference w:id="1"/></w:r>'
    WordFile(word_body(content).replace("</w:p>", f"{mark}</w:p>", 1), content.notes, ("Is this true?",)).save(target)


@maker("docx by hand", "split runs, fields, links, content controls")
def _(content: Content, target: Path) -> None:
    field_start = (
        '<w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText>HYPERLINK "http://x.org"</w:instrText></w:r>'
    )
    field_start += '<w:r><w:fldChar w:fldCharType="separate"/></w:r>'
    field_end = '<w:r><w:fldChar w:fldCharType="end"/></w:r>'
    body = ""
    for number, text in enumerate(content.paragraphs):
        pieces = [text[i : i + 7] for i in range(0, len(text), 7)]
        runs = [f'<w:r><w:rPr><w:b/></w:rPr><w:t xml:space="preserve">{escape(piece)}</w:t></w:r>' for piece in pieces]
        runs[0] = f"<w:hyperlink>{runs[0]}</w:hyperlink><w:proofErr/>"
        runs[-1] = f"{field_start}{runs[-1]}{field_end}"
        paragraph = f"<w:p>{''.join(runs)}</w:p>"
        body += paragraph if number % 2 else f"<w:sdt><w:sdtPr/><w:sdtContent>{paragraph}</w:sdtContent></w:sdt>"
    prompt = word_paragraph("Click here to enter text.")
    prompt = f"<w:sdt><w:sdtPr><w:showingPlcHdr/></w:sdtPr><w:sdtContent>{prompt}</w:sdtContent></w:sdt>"
    WordFile(body + prompt).save(target)


# 6. OpenDocument


@maker("odt", "LibreOffice, title and table", title=True, table=True, needs="soffice")
def _(content: Content, target: Path) -> None:
    by_office(content, target, "odt")


@maker("odt", "LibreOffice, footnotes", notes=True, needs="soffice")
def _(content: Content, target: Path) -> None:
    by_office(content, target, "odt", Layout(head="The Lamps of the Bay", foot=True))


@maker("odt", "LibreOffice, a text box", needs="soffice")
def _(content: Content, target: Path) -> None:
    first, second = halves(content)
    body = "".join(f"<text:p>{escape(text)}</text:p>" for text in first[:-1])
    by_office(content, target, "odt", body=f"{body}<text:p>{escape(first[-1])}{odt_box(second)}</text:p>")


@maker("odt", "LibreOffice from Word with tracked changes", needs="soffice")
def _(content: Content, target: Path) -> None:
    source = target.with_name(f"{target.stem}-source.docx")
    next(entry for entry in MAKERS if entry.name == "tracked changes").write(content, source)
    office(source, "odt", target)
    source.unlink()


@maker("odt", "pandoc, footnotes", title=True, notes=True, needs="pandoc")
def _(content: Content, target: Path) -> None:
    by_pandoc(content, target)


@maker("odt", "flat XML", title=True, table=True, notes=True)
def _(content: Content, target: Path) -> None:
    target.write_text(fodt(odt_body(content)), encoding="utf-8")


# 7. E-books


def _epub_by_pandoc(name: str, *options: str, notes: bool = False) -> None:
    @maker("epub", name, title=True, needs="pandoc", front="The Collected Reports", notes=notes)
    def _(content: Content, target: Path) -> None:
        source = target.with_suffix(".source.md")
        marks = [f"[^{i}]" if i < len(content.notes) else "" for i in range(len(content.paragraphs))]
        parts = [
            f"# {content.title}",
            *(markdown_escaped(text) + mark for text, mark in zip(content.paragraphs, marks)),
        ]
        parts += [f"[^{i}]: {note}" for i, note in enumerate(content.notes)]
        source.write_text("\n\n".join(parts), encoding="utf-8")
        pandoc(source, target, "--from", "markdown-smart", "--metadata", f"title={content.front}", *options)
        source.unlink()


_epub_by_pandoc("pandoc, EPUB 3", "--to", "epub3")
_epub_by_pandoc("pandoc, EPUB 2, a contents page", "--to", "epub2", "--toc")
_epub_by_pandoc("pandoc, footnotes", notes=True)


@maker("epub", "LibreOffice", title=True, needs="soffice")
def _(content: Content, target: Path) -> None:
    by_office(content, target, "epub")


def _epub_by_hand(content: Content, target: Path, encoding: str, more: dict[str, str]) -> None:
    members = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": '<container><rootfiles><rootfile full-path="OEBPS/c.opf"/></rootfiles></container>',
    }
    items = references = ""
    for number, text in enumerate(content.paragraphs):
        items += f'<item id="c{number}" href="c%20{number}.xhtml" media-type="application/xhtml+xml"/>'
        references += f'<itemref idref="c{number}"/>'
        page = f'<?xml version="1.0" encoding="{encoding}"?><html><head><title/></head>'
        page += f"<body><p>{escape(text)}</p></body></html>"
        members[f"OEBPS/c {number}.xhtml"] = page
    members["OEBPS/c.opf"] = f"<package><manifest>{items}</manifest><spine>{references}</spine></package>"
    with zipfile.ZipFile(target, "w") as archive:
        for name, text in (members | more).items():
            archive.writestr(name, text.encode(encoding, "xmlcharrefreplace"))


@maker("epub", "by hand, a chapter a paragraph, windows-1252")
def _(content: Content, target: Path) -> None:
    _epub_by_hand(content, target, "windows-1252", {})


@maker("epub", "by hand, with scrambled fonts")
def _(content: Content, target: Path) -> None:
    method = '<EncryptionMethod Algorithm="http://www.idpf.org/2008/embedding"/>'
    _epub_by_hand(
        content,
        target,
        "utf-8",
        {"META-INF/encryption.xml": f"<encryption><EncryptedData>{method}</EncryptedData></encryption>"},
    )


# 8. RTF


@maker("rtf", "LibreOffice, title and table", title=True, table=True, needs="soffice")
def _(content: Content, target: Path) -> None:
    by_office(content, target, "rtf")


@maker("rtf", "LibreOffice, footnotes, running heads", notes=True, needs="soffice")
def _(content: Content, target: Path) -> None:
    by_office(content, target, "rtf", Layout(head="The Lamps of the Bay", foot=True))


@maker("rtf", "LibreOffice, a text box", needs="soffice")
def _(content: Content, target: Path) -> None:
    first, second = halves(content)
    body = "".join(f"<text:p>{escape(text)}</text:p>" for text in first[:-1])
    by_office(content, target, "rtf", body=f"{body}<text:p>{escape(first[-1])}{odt_box(second)}</text:p>")


@maker("rtf", "pandoc", title=True, needs="pandoc")
def _(content: Content, target: Path) -> None:
    by_pandoc(content, target)


@maker("rtf", "pandoc, footnotes", notes=True, needs="pandoc")
def _(content: Content, target: Path) -> None:
    by_pandoc(content, target)


@maker("rtf", "by hand, as a simple editor writes it")
def _(content: Content, target: Path) -> None:
    def escaped(text: str) -> str:
        signs = []
        for sign in text:
            code = sign.encode("cp1252", "ignore")
            if sign in "\\{}":
                signs.append(f"\\{sign}")
            elif sign.isascii():
                signs.append(sign)
            else:
                signs.append(f"\\'{code[0]:02x}" if code else "".join(f"\\u{unit}?" for unit in _utf_16(sign)))
        return "".join(signs)

    body = "\\par\n".join(map(escaped, content.paragraphs))
    target.write_text(
        rf"{{\rtf1\ansi\ansicpg1252\deff0{{\fonttbl{{\f0\fnil\fcharset0 Calibri;}}}}\viewkind4\uc1\pard\f0\fs22 {body}\par}}"
    )


def _utf_16(sign: str) -> list[int]:
    data = sign.encode("utf-16-le")
    return [int.from_bytes(data[i : i + 2], "little", signed=True) for i in range(0, len(data), 2)]


# 9. Markdown


def _markdown_by_pandoc(
    name: str, *options: str, title: bool = False, table: bool = False, notes: bool = False
) -> None:
    @maker("md", name, needs="pandoc", title=title, table=table, notes=notes)
    def _(content: Content, target: Path) -> None:
        by_pandoc(content, target, *options)


_markdown_by_pandoc("pandoc, GitHub", "--to", "gfm", title=True, table=True)
_markdown_by_pandoc("pandoc, CommonMark, long lines", "--to", "commonmark", "--wrap", "none")
_markdown_by_pandoc("pandoc, its own dialect, footnotes", "--to", "markdown", "--columns", "60", title=True, notes=True)


@maker("md", "by hand, front matter and heading", title=True)
def _(content: Content, target: Path) -> None:
    parts = ["---\ntitle: Lamps\ntags: [a, b]\n---", f"# {content.title}", *map(markdown_escaped, content.paragraphs)]
    target.write_text("\n\n".join(parts), encoding="utf-8")


@maker("md", "by hand, quoted and emphasised")
def _(content: Content, target: Path) -> None:
    paragraphs = []
    for text in content.paragraphs:
        first, _, rest = text.partition(" ")
        paragraphs.append(f"> **{markdown_escaped(first)}** {markdown_escaped(rest)}")
    target.write_text("\n>\n".join(paragraphs), encoding="utf-8")


@maker("md", "by hand, a list")
def _(content: Content, target: Path) -> None:
    target.write_text("\n".join(f"* {markdown_escaped(text)}" for text in content.paragraphs), encoding="utf-16")


# 10. E-mail


def _message() -> email.message.EmailMessage:
    message = email.message.EmailMessage(email.policy.SMTP)
    message["From"], message["To"], message["Subject"] = "keeper@example.org", "bay@example.org", "The lamps"
    return message


def _plain(content: Content) -> str:
    return "\n\n".join(content.paragraphs) + "\n"


@maker("eml", "plain, quoted-printable")
def _(content: Content, target: Path) -> None:
    message = _message()
    message.set_content(_plain(content), cte="quoted-printable")
    target.write_bytes(message.as_bytes())


@maker("eml", "flowed lines")
def _(content: Content, target: Path) -> None:
    import textwrap

    lines = [
        " \n".join(textwrap.wrap(text, 66, break_on_hyphens=False, break_long_words=False))
        for text in content.paragraphs
    ]
    message = _message()
    message.set_content("\n\n".join(lines) + "\n", cte="8bit", params={"format": "flowed"})
    target.write_bytes(message.as_bytes())


@maker("eml", "plain and HTML, an attachment")
def _(content: Content, target: Path) -> None:
    message = _message()
    message.set_content(_plain(content))
    message.add_alternative(f"<html><body>{html_body(content)}</body></html>", subtype="html")
    message.add_attachment(b"%PDF-1.4", maintype="application", subtype="pdf", filename="lamps.pdf")
    target.write_bytes(message.as_bytes())


@maker("eml", "HTML in a layout table, windows-1252, base64")
def _(content: Content, target: Path) -> None:
    message = _message()
    page = f"<html><body><table><tr><td><table><tr><td>{html_body(content)}</td></tr></table></td></tr></table></body></html>"
    data = page.encode("cp1252", "xmlcharrefreplace")
    message.set_content(data, maintype="text", subtype="html", cte="base64", params={"charset": "windows-1252"})
    del message["Content-Disposition"]
    target.write_bytes(message.as_bytes())


@maker("eml", "a forwarded message")
def _(content: Content, target: Path) -> None:
    inner, outer = _message(), _message()
    inner.set_content(_plain(content), cte="base64")
    outer.make_mixed()
    outer.add_attachment(inner)
    target.write_bytes(outer.as_bytes())


@maker("eml", "a reply that quotes")
def _(content: Content, target: Path) -> None:
    message = _message()
    message.set_content("\n>\n".join(f"> {text}" for text in content.paragraphs) + "\n", cte="8bit")
    target.write_bytes(message.as_bytes())


ENDINGS = {"pdf by LibreOffice": "pdf", "pdf by Chromium": "pdf", "docx by programs": "docx", "docx by hand": "docx"}


def make_all(texts: Sequence[Sequence[str]], folder: Path) -> tuple[dict[str, Content], dict[str, str]]:
    """Makes a document of each maker from these texts; returns the content of each file, and why others are missing.

    A file that exists is kept, so that a run that was stopped goes on.
    """
    contents: dict[str, Content] = {}
    missing: dict[str, str] = {}
    for number, (entry, paragraphs) in enumerate(zip(MAKERS, texts, strict=True)):
        target = folder / f"{number:02}.{ENDINGS.get(entry.kind, entry.kind)}"
        content = entry.content(paragraphs)
        if entry.tool and shutil.which(entry.tool) is None:
            missing[target.name] = f"{entry.kind}, {entry.name}: {entry.tool} is not installed"
            continue
        if not target.exists():
            entry.write(content, target)
        contents[target.name] = content
    return contents, missing
