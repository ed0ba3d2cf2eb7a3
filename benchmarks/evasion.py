"""Hides marked texts with what a text editor can do, and counts how many are still found, before and after.

    python benchmarks/evasion.py --output evasion                          # 20 soft and 20 hard texts, real models
    python benchmarks/evasion.py --output evasion --human texts.jsonl.gz   # also human texts, transformed alike
    python benchmarks/evasion.py --output evasion --transformations other.py     # the transformations of another file
    python benchmarks/evasion.py --output evasion --records generate.jsonl --seed 3    # marked texts of a bench run
    python benchmarks/evasion.py --output evasion --count-sentences        # without models: which sentences are read again
    python benchmarks/evasion.py --output evasion --stand-in               # stand-in models without weights, within a minute

Soft texts are written under keys of today, hard ones under keys of the paper. "before" is the first reading alone, which
normalises the text; "after" is what `detect` does, with further readings (docs/generating.md). Found means a p-value of at most
0.01. DESTROYED names transformations that leave no text to read.

Texts and the vectors of their units are kept in the folder, so that a second run only detects. results.json there keeps the
figures of earlier runs where a later one does not replace them: `--after-only` spares the first reading alone.
Another file of transformations is a Python module with a dictionary TRANSFORMATIONS from names to functions of a text. The
human texts are a JSONL file with a `text` or a `natural_text` on each line; every pair of a human text and a transformation is
tried under keys of its own (`--human-keys`), so that the false positives are independent of each other given the texts.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import itertools
import json
import random
import re
import runpy
import sqlite3
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from alimark import AliMark, Key, load_embedder, load_llm
from alimark.audit.calibration import binomial_interval
from alimark.core._util.files import write_whole
from alimark.core._util.jsonl import read_jsonl
from alimark.core.detection.batching import EmbeddedTexts, deduplicate
from alimark.core.detection.preparing import PreparedText, prepare
from alimark.core.detection.searching import search_in_turn
from alimark.core.detection.settings import DetectionSettings
from alimark.core.embedding.base import Embedder
from alimark.core.frozen.text.normalising import normalise
from alimark.core.frozen.text.splitting import splitter
from alimark.core.text.clauses import clauses_of
from alimark.core.text.disguises import undisguise
from alimark.core.text.human_text import language_reference
from alimark.errors import AlimarkError
from alimark.lab.bench.models import secret
from alimark.testing import StandInEmbedder, StandInLLM

FPR = 0.01
KINDS = ("soft", "hard")
Transformation = Callable[[str], str]

_CYRILLIC = dict(zip("aceiopsxyjABCEHIKMOPTX", "асеіорѕхујАВСЕНІКМОРТХ", strict=True))
_GREEK = dict(zip("aoinpuvxtkABEHIKMNOPTXYZ", "αοιηρυνχτκΑΒΕΗΙΚΜΝΟΡΤΧΥΖ", strict=True))
_CAPITAL_STYLES = {"bold": 0x1D400, "script": 0x1D4D0, "sans": 0x1D5A0, "monospace": 0x1D670}
_SMALL_CAPITALS = dict(zip("abcdefghijklmnoprstuvwyz", "ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ", strict=True))
_LEET = str.maketrans("aeiostAEIOST", "431057431057")
_SUPERSCRIPT = dict(zip("abcdefghijklmnoprstuvwxyz", "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ", strict=True))


class Marked(NamedTuple):
    """A text, the kind of its key and the key's secret."""

    text: str
    kind: str
    secret: bytes

    def key(self, embedder: Embedder) -> Key:
        """The key as `keygen` makes it today."""
        return Key.generate(embedder=embedder, secret=self.secret, decision=self.kind)


def sentences_of(text: str) -> list[str]:
    """The sentences of a text as they stand in it."""
    return splitter().sentences(text)


def by_sentence(change: Callable[[int, str], str], joint: str = " ") -> Transformation:
    """A transformation that changes every sentence, given its number, and joins them."""
    return lambda text: joint.join(change(number, sentence) for number, sentence in enumerate(sentences_of(text)))


def by_letter(change: Callable[[str], str]) -> Transformation:
    """A transformation that changes every character."""
    return lambda text: "".join(map(change, text))


def styled(style: str) -> Transformation:
    """Letters of a mathematical alphabet."""
    first = _CAPITAL_STYLES[style]

    def change(char: str) -> str:
        if not (char.isascii() and char.isalpha()):
            return char
        return chr(first + ord(char) - 65) if char.isupper() else chr(first + 26 + ord(char) - 97)

    return by_letter(change)


def fullwidth(char: str) -> str:
    return "\u3000" if char == " " else chr(ord(char) + 0xFEE0) if "!" <= char <= "~" else char


def circled(char: str) -> str:
    if not (char.isascii() and char.isalpha()):
        return char
    return chr(0x24B6 + ord(char) - 65) if char.isupper() else chr(0x24D0 + ord(char) - 97)


def some(rate: float, change: Callable[[str], str]) -> Transformation:
    """Changes a share of the characters, chosen by a fixed seed."""

    def transformed(text: str) -> str:
        chance = random.Random(len(text))
        return "".join(change(char) if chance.random() < rate else char for char in text)

    return transformed


def zalgo(char: str) -> str:
    return char + "\u0300\u0316\u0322\u0334\u0340" if char.isalpha() else char


def accented(char: str) -> str:
    return unicodedata.normalize("NFC", char + "\u0301") if char.isalpha() else char


def wrapped(text: str, width: int, joint: str) -> str:
    """Breaks a text into lines of a width, joined by other than a line break."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + len(word) >= width:
            lines.append(line)
            line = ""
        line += " " * bool(line) + word
    return joint.join([*lines, line])


def hyphenated(text: str) -> str:
    return re.sub(r"\b([a-z]{3})([a-z]{3,})\b", "\\1-\n\\2", text)


def subtitles(text: str) -> str:
    lines = wrapped(text, 42, "\n").split("\n")
    return "\n\n".join(f"{n + 1}\n00:00:{n:02},000 --> 00:00:{n + 1:02},000\n{line}" for n, line in enumerate(lines))


def without_blanks_after_stops(text: str) -> str:
    return re.sub(r"([.!?]\"?) ", r"\1", text)


def without_stops(text: str) -> str:
    return by_sentence(lambda n, s: s.rstrip(".!?"))(text)


def inner_shuffled(word: str, chance: random.Random) -> str:
    return word[:1] + "".join(chance.sample(word[1:-1], len(word) - 2)) + word[-1] if len(word) > 3 else word


def misspelt(word: str, chance: random.Random) -> str:
    """One word in ten with a letter more, less, other or swapped."""
    if len(word) < 3 or chance.random() >= 0.1:
        return word
    place, letter = chance.randrange(len(word) - 1), chance.choice("abcdefghijklmnopqrstuvwxyz")
    first, last = word[:place], word[place:]
    return first + chance.choice((last[1:], last[1] + last[0] + last[2:], letter + last[1:], letter + last))


def pig_latin(word: str, chance: random.Random) -> str:
    small = word.lower()
    onset = small[: len(small) - len(small.lstrip("bcdfghjklmnpqrstvwxyz"))]
    changed = small[len(onset) :] + onset + "ay" if onset and onset != small else small + "way"
    return changed.capitalize() if word[0].isupper() else changed


def by_word(change: Callable[[str, random.Random], str]) -> Transformation:
    """A transformation that changes every run of letters, with a generator of random numbers."""

    def transformed(text: str) -> str:
        chance = random.Random(text)
        return re.sub("[A-Za-z]+", lambda match: change(match[0], chance), text)

    return transformed


def among_others(text: str) -> str:
    """Two sentences that somebody else wrote after each, from Python's language reference."""
    chance = random.Random(text)
    others = iter(sentences_of(" ".join(chance.sample(list(language_reference()), 4))))
    return " ".join(" ".join((sentence, next(others), next(others))) for sentence in sentences_of(text))


_EMOJI = "🙂🔥✨🎉🚀"
TRANSFORMATIONS: dict[str, Transformation] = {
    "none": lambda text: text,
    "code fence": lambda text: f"```\n{text}\n```",
    "code fence with a language": lambda text: f"```text\n{text}\n```\n",
    "a fence around every sentence": by_sentence(lambda n, s: f"```\n{s}\n```", "\n"),
    "open fence": lambda text: f"```\n{text}",
    "inline code": by_sentence(lambda n, s: f"`{s}`"),
    "no blanks after stops": without_blanks_after_stops,
    "no blanks after stops, lower case": lambda text: without_blanks_after_stops(text).lower(),
    "blanks before stops": lambda text: re.sub(r"(?<=\w)([.,])(?=\s|$)", r" \1", text),
    "fullwidth": by_letter(fullwidth),
    "mathematical bold": styled("bold"),
    "mathematical script": styled("script"),
    "mathematical monospace": styled("monospace"),
    "circled letters": by_letter(circled),
    "small capitals": by_letter(lambda char: _SMALL_CAPITALS.get(char, char)),
    "superscript letters": by_letter(lambda char: _SUPERSCRIPT.get(char, char)),
    "Cyrillic look-alikes": by_letter(lambda char: _CYRILLIC.get(char, char)),
    "Greek look-alikes": by_letter(lambda char: _GREEK.get(char, char)),
    "some look-alikes": some(0.2, lambda char: _CYRILLIC.get(char, char)),
    "zero-width space between letters": "\u200b".join,
    "zero-width space for blanks": lambda text: text.replace(" ", "\u200b"),
    "soft hyphens": some(0.3, lambda char: char + "\u00ad" * char.isalpha()),
    "word joiners and byte-order marks": some(0.3, lambda char: char + "\u2060\ufeff"),
    "Hangul fillers for blanks": lambda text: text.replace(" ", "\u3164"),
    "no-break blanks": lambda text: text.replace(" ", "\u00a0"),
    "tag characters": by_letter(lambda char: char + "\U000e0041"),
    "written backwards behind an override": by_sentence(lambda n, s: f"\u202e{s[::-1]}\u202c"),
    "piled-up marks": by_letter(zalgo),
    "struck-through": by_letter(lambda char: char + "\u0336"),
    "accents on all letters": by_letter(accented),
    "HTML entities": by_letter(lambda char: f"&#{ord(char)};" if char.isalpha() else html.escape(char)),
    "entities escaped twice": by_letter(lambda char: f"&amp;#x{ord(char):x};" if char.isalpha() else char),
    "HTML": lambda text: "<html><body>" + by_sentence(lambda n, s: f"<p><b>{s}</b></p>", "")(text) + "</body></html>",
    "a tag in every word": lambda text: re.sub(r"\b(\w)(\w+)", r"<i>\1</i><span>\2</span>", text),
    "Markdown emphasis": by_sentence(lambda n, s: " ".join(f"**{word}**" for word in s.split())),
    "Markdown links": by_sentence(lambda n, s: f"[{s}](https://example.org/{n})"),
    "quoted lines": lambda text: "> " + wrapped(text, 60, "\n> "),
    "a table": by_sentence(lambda n, s: f"| {n} | {s} |", "\n"),
    "bullets": by_sentence(lambda n, s: f"➤ {s}", "\n"),
    "numbered (1)": by_sentence(lambda n, s: f"({n + 1}) {s}"),
    "step by step": by_sentence(lambda n, s: f"Step {n + 1}: {s}", "\n"),
    "a dialogue": by_sentence(lambda n, s: f"{('Alice', 'Bob')[n % 2]}: {s}", "\n"),
    "time stamps": by_sentence(lambda n, s: f"[00:{n:02}:07] {s}", "\n"),
    "subtitles": subtitles,
    "citations": by_sentence(lambda n, s: f"{s[:-1]} [{n + 1}, {n + 3}]{s[-1]}"),
    "authors and years": by_sentence(lambda n, s: f"{s[:-1]} (Smith et al., 20{n + 10}){s[-1]}"),
    "emoji for stops": by_sentence(lambda n, s: s.rstrip(".!?") + f" {_EMOJI[n % len(_EMOJI)]}"),
    "foreign stops": by_sentence(lambda n, s: s.rstrip(".") + "。", ""),
    "spaced letters": " ".join,
    "letters with hyphens": lambda text: " ".join("-".join(word) for word in text.split()),
    "underscores for blanks": by_sentence(lambda n, s: s.replace(" ", "_")),
    "percent signs": quote,
    "hyphens at line ends": hyphenated,
    "a blank line after every line": lambda text: wrapped(text, 50, "\n\n"),
    "capital letters": str.upper,
    "lower case": str.lower,
    "LaTeX": by_sentence(lambda n, s: f"\\textbf{{{s}}}\\footnote{{See {n}.}}"),
    "commas for stops": by_sentence(lambda n, s: s.rstrip(".!?") + ","),
    "commas for half of the stops": by_sentence(lambda n, s: s.rstrip(".!?") + "," if n % 2 else s),
    "commas for stops, lower case": lambda text: by_sentence(lambda n, s: s.rstrip(".!?") + ",")(text).lower(),
    "dashes for stops": by_sentence(lambda n, s: s.rstrip(".!?") + " -"),
    "newlines for stops": by_sentence(lambda n, s: s.rstrip(".!?"), "\n"),
    "and for stops": by_sentence(lambda n, s: s.rstrip(".!?"), " and "),
    "a stop after every five words": lambda text: re.sub(r"((?:\S+ ){4}\S+) ", r"\1. ", without_stops(text)),
    "no punctuation": lambda text: re.sub(r"[^\w\s']", "", text),
    "no punctuation, lower case": lambda text: re.sub(r"[^\w\s']", "", text).lower(),
    "semicolons for stops": by_sentence(lambda n, s: s.rstrip(".!?") + ";"),
    "no final marks": by_sentence(lambda n, s: s.rstrip(".!?")),
    "Yes. after every sentence": by_sentence(lambda n, s: f"{s} Yes."),
    "vowels dropped": lambda text: re.sub("[aeiou]", "", text),
    "inner vowels dropped": lambda text: re.sub(r"(?<=\w)[aeiou](?=\w)", "", text),
    "inner letters shuffled": by_word(inner_shuffled),
    "blanks dropped": lambda text: text.replace(" ", ""),
    "blanks moved": lambda text: re.sub(r"(\w) (\w)", r"\1\2 ", text),
    "pig latin": by_word(pig_latin),
    "typos in a tenth of the words": by_word(misspelt),
    "comments beside code": by_sentence(lambda n, s: f"// {s}\nint value{n} = read(input, {n});", "\n"),
    "the same prefix": by_sentence(lambda n, s: f"As far as anybody in our department can tell today, {s}"),
    "two others after each": among_others,
    "reversed": lambda text: text[::-1],
    "leet": lambda text: text.translate(_LEET),
    "one word a paragraph": lambda text: "\n\n".join(text.split()),
}
DESTROYED = ("leet", "one word a paragraph")


def marked_texts(options: argparse.Namespace, embedder: Embedder) -> dict[str, list[Marked]]:
    """The marked texts of each kind with their keys; those of an earlier run are read from the folder."""
    if options.records:
        take_records(options, embedder)
    llm = None
    texts: dict[str, list[Marked]] = {kind: [] for kind in options.kinds}
    for kind, number in itertools.product(options.kinds, range(options.texts)):
        path = options.output / f"{kind}-{number}.json"
        if not path.exists():
            llm = llm or (StandInLLM() if options.stand_in else load_llm(options.llm))
            marked = Marked("", kind, number.to_bytes(32, "big"))
            mark = AliMark(marked.key(embedder), embedder=embedder)
            prompt = PROMPTS[number % len(PROMPTS)]
            generation = mark.generate(
                prompt, llm, sentences=options.sentences, candidates=options.candidates, seed=number
            )
            write_whole(path, json.dumps({"text": generation.text, "secret": marked.secret.hex()}).encode())
            print(f"{kind} {number}: {generation.surviving} of {len(generation.sentences)} sentences", flush=True)
        record = json.loads(path.read_text("utf-8"))
        texts[kind].append(Marked(record["text"], kind, bytes.fromhex(record["secret"])))
    return texts


def take_records(options: argparse.Namespace, embedder: Embedder) -> None:
    """Fills the folder with marked texts of a bench run, whose secrets follow from the run's seed and the prompt."""
    counts = dict.fromkeys(KINDS, 0)
    for _, record in read_jsonl(options.records):
        if not isinstance(record, dict) or record.get("scheme") != "alimark":
            continue
        if len(record["sentences"]) != options.sentences or record["settings"]["candidates"] != options.candidates:
            continue
        for kind in KINDS:
            marked = Marked(record["text"], kind, secret(options.seed, record["prompt"]))
            if counts[kind] < options.texts and record["key_id"] == marked.key(embedder).id:
                path = options.output / f"{kind}-{counts[kind]}.json"
                write_whole(path, json.dumps({"text": record["text"], "secret": marked.secret.hex()}).encode())
                counts[kind] += 1
    for kind in options.kinds:
        if counts[kind] < options.texts:
            raise SystemExit(
                f"{options.records} holds {counts[kind]} {kind} texts of {options.sentences} sentences and "
                f"{options.candidates} candidates under this seed; ask for fewer (--texts), or for others (--sentences, "
                "--candidates, --seed)"
            )


PROMPTS = (
    "The old lighthouse at the edge of the bay had been dark for thirty years.",
    "Scientists have found a new way to store energy from the sun.",
    "The city council met on Tuesday to discuss the new tram line.",
    "My grandmother kept a garden behind the house where she grew up.",
    "A good loaf of bread begins with patience.",
    "When the first settlers reached the valley, they found it full of birds.",
    "The novel tells the story of two brothers who leave their village.",
    "Learning to play the violin as an adult is harder than it looks.",
    "The museum will open a new wing devoted to textiles.",
    "Every winter the whales come back to the same quiet bay.",
)


class StoredVectors:
    """The vectors of all units so far, in a file: transformations that are undone give the same units again."""

    def __init__(self, path: Path, embedder: Embedder) -> None:
        self.embedder = embedder
        self._database = sqlite3.connect(path, timeout=600)
        self._database.execute("CREATE TABLE IF NOT EXISTS vectors (name BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID")

    def rows(self, units: Sequence[str]) -> NDArray[np.float32]:
        """The vector of each unit; those that are new are embedded and stored."""
        names = {unit: self._name(unit) for unit in units}
        new = [unit for unit, name in names.items() if self._stored(name) is None]
        if new:
            vectors = zip(new, self.embedder.embed(new), strict=True)
            with self._database:
                self._database.executemany(
                    "INSERT OR IGNORE INTO vectors VALUES (?, ?)",
                    [(names[unit], vector.astype(np.float32).tobytes()) for unit, vector in vectors],
                )
        return np.stack([np.frombuffer(self._stored(names[unit]) or b"", np.float32) for unit in units])

    def missing(self, text: PreparedText) -> int:
        """How many units of a text are not stored yet."""
        return sum(self._stored(self._name(unit)) is None for unit in set(text.unit_texts))

    def _name(self, unit: str) -> bytes:
        whole = f"{self.embedder.fingerprint}\0{unit}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(whole, digest_size=16).digest()

    def _stored(self, name: bytes) -> bytes | None:
        row = self._database.execute("SELECT vector FROM vectors WHERE name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])


def is_found(text: str, key: Key, vectors: StoredVectors, *, today: bool) -> bool:
    """Whether today's detection, or that of the text read as it stands, finds the mark; not where nothing can be read.

    The p-value of a text is the smallest of its readings, times their number. The readings are therefore tried one after the
    other, the one with the fewest new units first, until one of them suffices.
    """
    settings = DetectionSettings(draws=499)
    try:
        prepared = prepare(text, key, vectors.embedder, settings)
    except AlimarkError:
        return False
    versions = prepared.versions if today else prepared.versions[:1]
    for reading in sorted((replace(version, further=()) for version in versions), key=vectors.missing):
        units = deduplicate([reading.unit_texts])
        signals = EmbeddedTexts(units, vectors.rows(list(units))).signals(reading, key, settings)
        p_value = search_in_turn(reading, signals, key, vectors.embedder, settings).p_value
        if p_value * len(versions) <= FPR:
            return True
    return False


def human_texts(path: Path, count: int, sentences: int) -> Iterator[str]:
    """The first sentences of human texts, as many as a marked text has."""
    for _, record in read_jsonl(path):
        if isinstance(record, dict) and count:
            text = str(record.get("text") or record.get("natural_text") or "")
            if len(parts := sentences_of(text)) >= sentences:
                count -= 1
                yield " ".join(parts[:sentences])


def rows(
    texts: Sequence[Marked],
    transformations: Mapping[str, Transformation],
    vectors: StoredVectors,
    times: Sequence[str],
    human_keys: int = 0,
) -> Iterator[tuple[str, dict[str, int]]]:
    """For each transformation the numbers of texts found before and after, or at one of these times."""
    keys = [text.key(vectors.embedder) for text in texts]
    for name, transformation in transformations.items():
        counts = dict.fromkeys(times, 0)
        for number, source in enumerate(texts):
            text = transformation(source.text)
            secrets = [hashlib.sha256(f"{name}/{number}/{k}".encode()).digest() for k in range(human_keys)]
            for when, secret_bytes in itertools.product(times, secrets or [source.secret]):
                key = keys[number].like(secret_bytes)
                counts[when] += is_found(text, key, vectors, today=when == "after")
        yield name, counts


def count_sentences(texts: Sequence[Marked], transformations: Mapping[str, Transformation]) -> None:
    """Prints for each transformation how many sentences of the texts are read again, letter by letter.

    "read" counts those among the sentences of the first reading; "undisguised" also those of the reading without disguises, and
    "or by clauses" those that are among the units of the reading by clauses. No model is needed, so that this takes seconds; a
    mark survives without some of its sentences.
    """
    total = sum(len(sentences_of(text.text)) for text in texts)
    print(f"{len(texts)} texts with {total} sentences\n{'transformation':40} read undisguised or by clauses")
    for name, transformation in transformations.items():
        counts = [0, 0, 0]
        for text in texts:
            disguised = transformation(text.text)
            first, second = (
                splitter().sentences_as_read(reading(disguised).text) for reading in (normalise, undisguise)
            )
            clauses = clauses_of(second)
            runs = [clauses.unit(first, last) for first, last, _ in clauses.runs()] if clauses else []
            known: set[str] = set()
            for place, units in enumerate((first, second, runs)):
                known |= set(map(letters_of, units))
                counts[place] += sum(letters_of(sentence) in known for sentence in sentences_of(text.text))
        print(f"{name:40} {counts[0]:4} {counts[1]:11} {counts[2]:13}", flush=True)


def letters_of(sentence: str) -> str:
    """The letters and digits of a sentence in lower case."""
    return "".join(filter(str.isalnum, sentence.lower()))


def transformations_of(path: Path | None) -> dict[str, Transformation]:
    """This module's transformations, or those of another file."""
    return TRANSFORMATIONS if path is None else dict(runpy.run_path(str(path))["TRANSFORMATIONS"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for texts and results")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--texts", type=int, default=20, help="texts of each kind")
    parser.add_argument("--sentences", type=int, default=12)
    parser.add_argument("--candidates", type=int, default=64)
    parser.add_argument("--llm", default="smollm2-135m")
    parser.add_argument("--embedder", default="all-MiniLM-L6-v2")
    parser.add_argument("--stand-in", action="store_true", help="stand-in models instead of real ones")
    parser.add_argument("--human", type=Path, help="JSONL of human texts, transformed alike, for false positives")
    parser.add_argument("--human-keys", type=int, default=1, help="keys for each human text and transformation")
    parser.add_argument("--human-only", action="store_true", help="do not count the marked texts")
    parser.add_argument("--after-only", action="store_true", help="do not read the texts as they stand")
    parser.add_argument(
        "--count-sentences", action="store_true", help="count sentences that are read again; no detection"
    )
    parser.add_argument("--transformations", type=Path, help="a Python file with other transformations")
    parser.add_argument("--only", nargs="+", help="some transformations")
    parser.add_argument("--records", type=Path, help="JSONL of marked texts of a bench run, instead of writing texts")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the recipe behind --records")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    embedder = StandInEmbedder() if options.stand_in else load_embedder(options.embedder)
    transformations = transformations_of(options.transformations)
    transformations = {name: transformations[name] for name in options.only or transformations}
    kinds = marked_texts(options, embedder)
    if options.human:
        human = list(human_texts(options.human, options.texts, options.sentences))
        humans = {
            f"human, {kind}": [marked._replace(text=text) for text, marked in zip(human, kinds[kind], strict=False)]
            for kind in options.kinds
        }
        kinds = humans if options.human_only else kinds | humans
    if options.count_sentences:
        count_sentences([text for texts in kinds.values() for text in texts], transformations)
        return
    vectors = StoredVectors(options.output / "vectors.sqlite", embedder)
    for kind, texts in kinds.items():
        count_kind(kind, texts, transformations, vectors, options)


def store(path: Path, place: str, figures: dict[str, int]) -> None:
    """Adds figures to the file of results at once, so that a run that is ended early has stored what it counted."""
    results = json.loads(path.read_text("utf-8")) if path.exists() else {}
    results[place] = results.get(place, {}) | figures
    write_whole(path, json.dumps(results, indent=1).encode())


def count_kind(
    kind: str,
    texts: Sequence[Marked],
    transformations: Mapping[str, Transformation],
    vectors: StoredVectors,
    options: argparse.Namespace,
) -> None:
    """Counts the texts of one kind that are found after each transformation, prints the figures and stores them."""
    human_keys = options.human_keys if kind.startswith("human") else 0
    times = ("after",) if options.after_only else ("before", "after")
    tests = len(texts) * max(1, human_keys)
    print(
        f"\n{kind}: {len(texts)} texts, {tests} tests each, found at p <= {FPR}\n{'transformation':40} {' '.join(times)}"
    )
    totals = dict.fromkeys(times, 0)
    for name, counts in rows(texts, transformations, vectors, times, human_keys):
        store(options.output / "results.json", f"{kind}/{name}", {"texts": tests} | counts)
        totals = {when: totals[when] + counts[when] for when in times}
        figures = " ".join(f"{counts[when]:{len(when)}}" for when in times)
        print(f"{name:40} {figures}{' destroyed' if name in DESTROYED else ''}", flush=True)
    low, high = (share * tests * len(transformations) for share in binomial_interval(tests * len(transformations), FPR))
    print(
        f"{'all':40} {' '.join(f'{totals[when]:{len(when)}}' for when in times)} of {tests * len(transformations)}",
        end="",
    )
    print(f"; unmarked: {low:.0f} to {high:.0f} expected" if human_keys else "", flush=True)


if __name__ == "__main__":
    main()
