"""Human texts of other domains, from what a Debian machine and a Python environment hold, as JSONL for `alimark calibrate`.

    apt-get download jargon-text debian-policy doc-debian fortunes && for d in *.deb; do dpkg-deb -x $d debian; done
    python benchmarks/domains.py domains --debian debian
    for d in domains/*.jsonl; do alimark calibrate -k key.json --human $d --keys 200 --draws 199; done

A text is a passage of 13 sentences of prose, and no sentence is in two texts of a domain. A file gives three texts at most, or
more where few files hold much: licences, the policy, the dictionary and quotations.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from random import Random

from alimark.core.frozen.text.splitting import splitter
from alimark.core.text.language import WORDS, looks_english

SENTENCES, A_FILE = 13, 3
_SITE = Path(sysconfig.get_paths()["purelib"])


def content(path: Path) -> str:
    """The text of a file, which may be compressed."""
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8", "replace")


def prose(text: str) -> str:
    """The paragraphs of more than 25 words that are mostly letters."""
    paragraphs = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text))
    long = (part for part in paragraphs if len(WORDS.findall(part)) > 25)
    return "\n\n".join(part for part in long if len(re.findall(r"\w", part)) > 0.7 * len(part))


def manual_page(path: Path) -> str:
    lines = re.sub(r"\\f.|\\&", "", content(path)).replace("\\-", "-").splitlines()
    kept = (re.sub(r"^\.[BI]R? +", "", line) for line in lines)
    return prose("\n".join("" if line.startswith((".", "'")) else line for line in kept))


def description(path: Path) -> str:
    return prose(re.sub(r"```.*?```|<[^>]*>|\[!?\[[^\n]*", "", content(path).partition("\n\n")[2], flags=re.DOTALL))


def domains(debian: Path) -> dict[str, tuple[Iterator[str], int]]:
    """The texts of each domain, and how many passages of one text are taken."""

    def files(folder: Path, *patterns: str) -> list[Path]:
        return sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file())

    share, docs = Path("/usr/share"), debian / "usr/share"
    licences = [
        *files(share / "common-licenses", "*"),
        *files(_SITE, "*.dist-info/licenses/**/*", "*.dist-info/LICEN*"),
    ]
    manuals = files(share / "man", "man1/*.gz", "man5/*.gz", "man7/*.gz", "man8/*.gz")[::60]
    quotations = (path for path in files(docs / "games/fortunes", "*") if not path.suffix)
    return {
        "licences": ((prose(content(path)) for path in licences), 30),
        "manual-pages": ((manual_page(path) for path in manuals), A_FILE),
        "package-descriptions": ((description(path) for path in files(_SITE, "*.dist-info/METADATA")), A_FILE),
        "read-me-and-news": ((prose(content(path)) for path in files(share / "doc", "*/README*", "*/NEWS*")), A_FILE),
        "policy": (
            (prose(content(path)) for path in files(docs / "doc", "debian-policy/*.txt.gz", "debian/*.txt*")),
            200,
        ),
        "dictionary-of-jargon": ((prose(content(path)) for path in files(docs / "doc", "jargon-text/*.txt.gz")), 300),
        "quotations": ((prose(content(path).replace("\n%\n", "\n\n")) for path in quotations), 20),
    }


def passages(texts: Iterator[str], most: int) -> Iterator[str]:
    cut, seen = splitter(), set[str]()
    for text in texts:
        spans = cut.spans(text[:2_000_000]) if looks_english(text[:5000]) else []
        starts = range(0, len(spans) - SENTENCES + 1, SENTENCES)
        for start in starts[:: max(1, len(starts) // most)][:most]:
            passage = text[spans[start][0] : spans[start + SENTENCES - 1][1]]
            if not seen & (sentences := set(cut.units(passage))):
                yield passage
            seen |= sentences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--debian", type=Path, default=Path("debian"), help="a folder with unpacked Debian packages")
    parser.add_argument("--texts", type=int, default=100, help="the most texts of a domain, drawn at random")
    options = parser.parse_args()
    options.output.mkdir(exist_ok=True)
    for name, (texts, most) in domains(options.debian).items():
        every = list(passages(texts, most))
        lines = [json.dumps({"text": text}) for text in Random(1).sample(every, min(len(every), options.texts))]
        (options.output / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")
        print(f"{name}: {len(lines)} texts", flush=True)


if __name__ == "__main__":
    main()
