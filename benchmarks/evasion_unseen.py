"""Transformations that were written without knowledge of the normaliser, for benchmarks/evasion.py --transformations."""

import json
import quopri
import random
import re
import textwrap
import unicodedata
from collections.abc import Callable

NAMES = ("ann", "bob", "Chloe", "dev_7")
ASIDES = ("Hm. ", "Well, quite. ", "You know how it is. ", "Right? ", "So there. ", "Anyway. ", "Let that sink in. ")
FILLERS = ("like,", "you know,", "um,", "I mean,", "sort of,", "er,")
EMOJI = ("\U0001f600", "\U0001f389", "\U0001f44d\U0001f3fd", "\U0001f680", "\u2764\ufe0f", "\U0001f914")
DECOYS = (
    "The kettle is on the shelf by the door.",
    "Buses leave from the square at ten past the hour.",
    "My aunt keeps three grey cats and a parrot.",
    "Paint dries slowly when the weather is damp.",
    "A good rope is worth more than a new boat.",
)


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a text, each on one line."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def split_sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph, naively."""
    return re.findall(r"\S.*?(?:[.!?]+[\"')\u2019\u201d]*(?=\s|$)|$)", paragraph)


def sentences(text: str) -> list[str]:
    """All sentences of a text."""
    return [sentence for paragraph in paragraphs(text) for sentence in split_sentences(paragraph)]


def per_sentence(text: str, change: Callable[[int, str], str], joiner: str = " ") -> str:
    """The text with every sentence changed, its number in the text given; the paragraphs stay."""
    number = 0
    changed = []
    for paragraph in paragraphs(text):
        row = []
        for sentence in split_sentences(paragraph):
            row.append(change(number, sentence))
            number += 1
        changed.append(joiner.join(row))
    return "\n\n".join(changed)


def in_words(text: str, change: Callable[[str], str]) -> str:
    """The text with every run of two or more letters changed."""
    return re.sub(r"[^\W\d_]{2,}", lambda match: change(match.group()), text)


def shift_letters(text: str, upper: int, lower: int) -> str:
    """The text with its letters taken from other Unicode blocks that start at the given places."""
    table = {ord("A") + i: chr(upper + i) for i in range(26)} | {ord("a") + i: chr(lower + i) for i in range(26)}
    return text.translate(table)


def greek_cyrillic_mix(text: str) -> str:
    """Every letter with a Greek, Cyrillic or Armenian double becomes that double."""
    source = "aceijopsxyhguvABEHIKMNOPTXYZCS"
    target = (
        "\u0430\u0441\u0435\u0456\u0458\u03bf\u0440\u0455\u0445\u0443\u04bb\u0581\u057d\u03bd"
        "\u0391\u0392\u0395\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a7\u03a5\u0396\u0421\u0405"
    )
    return text.translate(str.maketrans(source, target))


def styled_words_in_turn(text: str) -> str:
    """Each word in another of the decorated alphabets (bold script, monospace, circled, full width, sans bold)."""
    styles = ((0x1D4D0, 0x1D4EA), (0x1D670, 0x1D68A), (0x24B6, 0x24D0), (0xFF21, 0xFF41), (0x1D5D4, 0x1D5EE))
    parts = re.split(r"(\s+)", text)
    return "".join(part if i % 2 else shift_letters(part, *styles[i // 2 % 5]) for i, part in enumerate(parts))


def small_capitals(text: str) -> str:
    """Small letters become phonetic small capitals, for a vintage look."""
    small = (
        "\u1d00\u0299\u1d04\u1d05\u1d07\ua730\u0262\u029c\u026a\u1d0a\u1d0b\u029f\u1d0d"
        "\u0274\u1d0f\u1d18q\u0280\ua731\u1d1b\u1d1c\u1d20\u1d21x\u028f\u1d22"
    )
    return text.translate(str.maketrans("abcdefghijklmnopqrstuvwxyz", small))


def upside_down(text: str) -> str:
    """Every line turned by 180 degrees with turned letters; the reader turns the page."""
    turned = (
        "\u0250q\u0254p\u01dd\u025f\u0183\u0265\u1d09\u027e\u029e\ua781\u026fuodb"
        "\u0279s\u0287n\u028c\u028dx\u028ez\u02d9'\u00bf\u00a1"
    )
    table = str.maketrans("abcdefghijklmnopqrstuvwxyz.,?!", turned)
    lines = [line for paragraph in paragraphs(text) for line in [*textwrap.wrap(paragraph, 70), ""]]
    return "\n".join(line.lower().translate(table)[::-1] for line in reversed(lines)).strip()


def right_to_left_override(text: str) -> str:
    """Every line stored backwards behind a right-to-left override, so that it still shows forwards."""
    return "\n".join(f"\u202e{line[::-1]}\u202c" if line else line for line in text.split("\n"))


def stacked_diacritics(text: str) -> str:
    """One or two combining marks on every letter."""
    rng = random.Random(text)
    marks = [chr(code) for code in range(0x300, 0x34F) if unicodedata.combining(chr(code))]
    return "".join(char + "".join(rng.choices(marks, k=rng.randint(1, 2))) if char.isalpha() else char for char in text)


def invisible_confetti(text: str) -> str:
    """After every character one of many invisible ones: joiners, soft hyphens, variation selectors, tags."""
    rng = random.Random(text)
    unseen = (
        "\u200b\u200c\u200d\u2060\u2063\ufeff\u00ad\u034f\u180e\ufe00\ufe0e\u2061\u200e\U000e0061\U000e0020\U000e0100"
    )
    return "".join(char if char == "\n" else char + rng.choice(unseen) for char in text)


def foreign_stops(text: str) -> str:
    """The stops and commas of Chinese, Hindi, Arabic, Armenian, Ethiopic and Greek, and odd spaces."""
    stops = "\u3002\u0964\u06d4\u0589\u1362\uff61\u2024"
    spaces = "\u2003\u2009\u3000\u00a0\u202f\u205f"

    def change(number: int, sentence: str) -> str:
        sentence = sentence.replace(".", stops[number % len(stops)]).replace(",", "\u060c" if number % 2 else "\u3001")
        sentence = sentence.replace("?", "\u061f" if number % 2 else "\u037e").replace("!", "\u055c")
        return sentence.replace(" ", spaces[number % len(spaces)])

    return per_sentence(text, change, "")


def no_stops_lower_case(text: str) -> str:
    """A stream of thought: no capitals, no punctuation, no paragraphs."""
    return " ".join(re.sub(r"[^\w\s'\u2019]", " ", text).lower().replace("'", "").replace("\u2019", "").split())


def telegram(text: str) -> str:
    """A telegram: all capitals, STOP for each sentence end, COMMA for each comma, ten words on a line."""
    wire = re.sub(r"[.!?;:]+(?=\s|$)", " STOP", text.upper()).replace(",", " COMMA")
    words = re.sub(r"[^\w\s'-]", " ", wire).split()
    return "\n".join(" ".join(words[i : i + 10]) for i in range(0, len(words), 10))


def stop_after_three_words(text: str) -> str:
    """Dramatic. Style. With a full stop and a capital after every third word."""

    def change(_: int, sentence: str) -> str:
        words = [word.strip(".,;:!?") for word in sentence.split()]
        groups = [" ".join(words[i : i + 3]) for i in range(0, len(words), 3)]
        return " ".join(f"{group[:1].upper()}{group[1:]}." for group in groups)

    return per_sentence(text, change)


def sentences_joined_in_pairs(text: str) -> str:
    """The second half of each sentence is joined to the first half of the next; dashes mark the old ends."""
    words = " ".join(sentence.rstrip(".!?") + " \u2014" for sentence in sentences(text)).split()
    ends = [i for i, word in enumerate(words) if word == "\u2014"]
    middles = {(first + last) // 2 for first, last in zip([-1, *ends], ends, strict=False)}
    words = [word[:1].upper() + word[1:] if i - 1 in middles else word for i, word in enumerate(words)]
    return " ".join(word + "." if i in middles else word for i, word in enumerate(words))


def asides_between(text: str) -> str:
    """One or two short interjections before every sentence."""
    rng = random.Random(text)
    return per_sentence(text, lambda _, sentence: "".join(rng.sample(ASIDES, rng.randint(1, 2))) + sentence)


def spoken_fillers(text: str) -> str:
    """A stammered reading: fillers after every few words and repeated first letters."""
    rng = random.Random(text)

    def change(match: re.Match[str]) -> str:
        word = match.group()
        if rng.random() < 0.25 and word[0].isalpha():
            word = f"{word[0]}-{word}"
        return f"{rng.choice(FILLERS)} {word}" if rng.random() < 0.3 else word

    return re.sub(r"\S+", change, text)


def decoy_every_second_line(text: str) -> str:
    """A decoy after every sentence; a note tells the reader to skip the indented lines."""
    rows = [f"{sentence}\n    {DECOYS[i * 2 % len(DECOYS)]}" for i, sentence in enumerate(sentences(text))]
    return "(Skip the indented lines.)\n" + "\n".join(rows)


def shuffled_with_numbers(text: str) -> str:
    """The sentences in random order, each with its place in front; the reader follows the numbers."""
    rows = [f"({number}) {sentence}" for number, sentence in enumerate(sentences(text), 1)]
    random.Random(text).shuffle(rows)
    return "\n".join(rows)


def halves_in_footnotes(text: str) -> str:
    """The second half of every sentence moves to a footnote at the end."""
    notes = []

    def change(number: int, sentence: str) -> str:
        words = sentence.split()
        notes.append(f"[^{number + 1}]: \u2026 {' '.join(words[len(words) // 2 :])}")
        return f"{' '.join(words[: len(words) // 2])} \u2026[^{number + 1}]"

    body = per_sentence(text, change)
    return body + "\n\n" + "\n".join(notes)


def subtitles(text: str) -> str:
    """A SubRip file: six words to a cue, with numbers, times and italics tags, across the sentence ends."""
    words = text.split()
    cues = []
    for number, start in enumerate(range(0, len(words), 6), 1):
        times = [f"00:{at // 60:02d}:{at % 60:02d},{500 if at % 2 else 120:03d}" for at in (number * 3, number * 3 + 2)]
        piece = words[start : start + 6]
        cues.append(f"{number}\n{times[0]} --> {times[1]}\n<i>{' '.join(piece[:3])}\n{' '.join(piece[3:])}</i>")
    return "\n\n".join(cues)


def chat_log(text: str) -> str:
    """A group chat: a few words to a message, a time and a name before each, replies in between."""
    rng = random.Random(text)
    words, rows, minute = text.split(), [], 0
    while words:
        count = rng.randint(3, 7)
        piece, words = words[:count], words[count:]
        rows.append(
            f"[{(19 + minute // 60) % 24:02d}:{minute % 60:02d}] <{NAMES[0]}> {' '.join(piece).lower().rstrip('.')}"
        )
        if rng.random() < 0.3:
            answer = rng.choice(("lol", "ok", "wait what", "+1", "go on", "haha yes!!"))
            rows.append(f"[{(19 + minute // 60) % 24:02d}:{minute % 60:02d}] <{rng.choice(NAMES[1:])}> {answer}")
        minute += rng.randint(0, 2)
    return "\n".join(rows)


def mail_thread(text: str) -> str:
    """An old mail thread: quoted to several depths, wrapped badly, replies between, quoted-printable."""
    rows = []
    for number, sentence in enumerate(sentences(text)):
        depth = "> " * (1 + number % 3) if number % 2 else ">" * (1 + number % 3) + " "
        rows += [depth + line for line in textwrap.wrap(sentence, 34)]
        if number % 4 == 3:
            rows += ["", "Agreed, see below.", "", f"On Tue, {number} Mar 2021 at 09:12, Ann <ann@example.org> wrote:"]
    return quopri.encodestring("\n".join(rows).replace("e ", "e\u00a0").encode()).decode()


def json_words(text: str) -> str:
    """A transcript as a speech recogniser writes it: a JSON list of words with times, letters escaped at random."""
    rng = random.Random(text)
    rows, at = [], 0.0
    for word in text.split():
        code = "".join(f"\\u{ord(char):04x}" if ord(char) < 0x10000 and rng.random() < 0.15 else char for char in word)
        coded = json.dumps(word) if '"' in word or "\\" in word else f'"{code}"'
        rows.append(f'  {{"t": {at:.2f}, "w": {coded}}}')
        at += 0.31
    return "[\n" + ",\n".join(rows) + "\n]"


def program_source(text: str) -> str:
    """The text as C source: pieces of strings in print calls, with code comments after them."""
    pieces = [piece for paragraph in paragraphs(text) for piece in [*textwrap.wrap(paragraph, 27), "\\n"]]
    rows = [
        f'    printf("{piece.replace(chr(34), chr(92) + chr(34))} "); /* line {i} */'
        for i, piece in enumerate(pieces, 1)
    ]
    return "#include <stdio.h>\n\nint main(void)\n{\n" + "\n".join(rows) + "\n    return 0;\n}"


def marked_up_letters(text: str) -> str:
    """BBCode, HTML, wiki and LaTeX tags inside the words, in turn."""
    tags = (
        ("[b]", "[/b]"),
        ("<span class='x'>", "</span>"),
        ("'''", "'''"),
        (r"\textbf{", "}"),
        ("[[", "]]"),
        ("**", "**"),
    )
    parts = re.split(r"(\s+)", text)

    def mark(place: int, word: str) -> str:
        first, last = tags[place % len(tags)]
        cut = (len(word) + 1) // 2
        return f"{first}{word[:cut]}{last}{word[cut:]}" if word else word

    return "".join(part if i % 2 else mark(i // 2, part) for i, part in enumerate(parts))


def struck_out_words(text: str) -> str:
    """Tracked changes pasted as text: wrong words struck out before every second right one."""
    wrong = ("kitchen", "slowly", "yellow", "because", "mountain", "never", "fourteen", "whisper")
    words = re.split(r"(\s+)", text)
    return "".join(
        f"~~{wrong[i // 4 % len(wrong)]}~~ {word}" if i % 4 == 2 and word else word for i, word in enumerate(words)
    )


def two_columns(text: str) -> str:
    """Two newspaper columns copied line by line, with hyphenated words at the line ends."""
    lines, line = [], ""
    for word in text.split():
        room = 32 - len(line)
        if len(word) <= room:
            line += word + " "
        elif room > 3 and len(word) > room + 1:
            lines.append(line + word[: room - 1] + "-")
            line = word[room - 1 :] + " "
        else:
            lines.append(line)
            line = word + " "
    lines.append(line)
    half = (len(lines) + 1) // 2
    left, right = lines[:half], [*lines[half:], ""]
    return "\n".join(f"{first.rstrip():<36}{second}".rstrip() for first, second in zip(left, right, strict=False))


def verses_with_page_furniture(text: str) -> str:
    """A scanned book: line numbers, hyphenated lines, and a running head and page number every five lines."""
    rng = random.Random(text)
    joined = in_words(text, lambda word: word[:3] + "-\n" + word[3:] if len(word) > 6 and rng.random() < 0.5 else word)
    lines = [line for row in joined.split("\n") for line in textwrap.wrap(row, 45)]
    rows = []
    for number, line in enumerate(lines, 1):
        rows.append(f"{number:>4}  {line}")
        if number % 5 == 0:
            rows += ["", f"- {number // 5 + 40} -", "CHAPTER IV. OF SUNDRY MATTERS", ""]
    return "\n".join(rows)


def scanner_errors(text: str) -> str:
    """The look-alikes of a bad scan: rn for m, 1 for l, 0 for o, vv for w, cl for d, specks between the words."""
    rng = random.Random(text)
    errors = {"m": "rn", "l": "1", "o": "0", "w": "vv", "d": "cl", "I": "|", "S": "5", "e": "c", ".": ",", " ": " ' "}
    rate = {"e": 0.15, " ": 0.1, ".": 0.4}
    return "".join(errors[char] if char in errors and rng.random() < rate.get(char, 0.5) else char for char in text)


def dotted_letters(text: str) -> str:
    """A dot of one kind between all letters of a word and a slash between the words, as on a shop sign."""
    kinds = "\u00b7\u2022._-\u2027"
    rows = [kinds[i % len(kinds)].join(word) for i, word in enumerate(text.replace("\n\n", " \u00b6 ").split())]
    return " / ".join(rows)


def emoji_for_stops_and_spaces(text: str) -> str:
    """Emoji for the sentence ends, clapping hands between the words of every sentence."""

    def change(number: int, sentence: str) -> str:
        return " \U0001f44f ".join(sentence.rstrip(".!?").split()) + " " + EMOJI[number % len(EMOJI)] * 2

    return per_sentence(text, change)


TRANSFORMATIONS: dict[str, Callable[[str], str]] = {
    "Greek and Cyrillic doubles": greek_cyrillic_mix,
    "styled words in turn": styled_words_in_turn,
    "small capitals": small_capitals,
    "upside down": upside_down,
    "right-to-left override": right_to_left_override,
    "stacked diacritics": stacked_diacritics,
    "invisible confetti": invisible_confetti,
    "foreign stops and spaces": foreign_stops,
    "no stops, lower case": no_stops_lower_case,
    "telegram": telegram,
    "stop after three words": stop_after_three_words,
    "stops in mid-sentence": sentences_joined_in_pairs,
    "asides between": asides_between,
    "spoken fillers": spoken_fillers,
    "decoy every second line": decoy_every_second_line,
    "shuffled with numbers": shuffled_with_numbers,
    "halves in footnotes": halves_in_footnotes,
    "subtitles": subtitles,
    "chat log": chat_log,
    "mail thread": mail_thread,
    "JSON words": json_words,
    "C source": program_source,
    "marked-up letters": marked_up_letters,
    "struck-out words": struck_out_words,
    "two columns": two_columns,
    "book page furniture": verses_with_page_furniture,
    "scanner errors": scanner_errors,
    "dotted letters": dotted_letters,
    "emoji for stops": emoji_for_stops_and_spaces,
}
