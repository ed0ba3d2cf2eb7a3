"""The process that parses a document: it is given limits on time and memory, no environment and no file to write.

Started by `alimark.audit.documents.reading`. The document comes through standard input, and the answer goes to standard
output as JSON: `text`, `kind` and `notes`; or `error`, a message for the user; or `missing`, the library that is not
installed.
"""

import json
import sys
from collections.abc import Callable
from functools import partial

from alimark.audit.documents.packages import Package
from alimark.core._util.process import limit
from alimark.errors import AlimarkError, MissingExtra

CPU_SECONDS = 20
MEMORY = 2 << 30


def main(kind: str, most: int) -> None:
    """Reads a document of this kind from standard input, and writes the answer to standard output."""
    try:
        limit(CPU_SECONDS, MEMORY)
        data = sys.stdin.buffer.read()
        kind = Package(data).kind() if kind == "zip" else kind
        text, notes = parse(data, kind, most)
        answer: dict[str, object] = {"text": text[: most + 1], "kind": kind, "notes": notes}
    except MissingExtra as error:
        answer = {"missing": error.library}
    except ImportError as error:
        answer = {"missing": error.name or "a library"}
    except AlimarkError as error:
        answer = {"error": str(error)}
    except MemoryError:
        answer = {"error": f"the document needs more than {MEMORY >> 30} GB of memory to read; split it"}
    except RecursionError:
        answer = {"error": "the document is nested too deeply; save it in another program, or copy its text"}
    except Exception as error:  # a library may raise anything on a damaged or hostile file
        answer = {"error": f"the file cannot be read as {kind} ({type(error).__name__}); check that it is complete"}
    sys.stdout.write(json.dumps(answer))


def parse(data: bytes, kind: str, most: int) -> tuple[str, list[str]]:
    """Returns the text of a document, and notes about what was left out or guessed."""
    from alimark.audit.documents import epub, html, mail, opendocument, pdf, rtf, word

    readers: dict[str, Callable[[bytes], tuple[str, list[str]]]] = {
        "html": html.read, "md": html.read_markdown, "docx": word.read, "odt": opendocument.read, "rtf": rtf.read,
        "eml": mail.read, "pdf": partial(pdf.read, most=most), "epub": partial(epub.read, most=most),
    }  # fmt: skip
    return readers[kind](data)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
