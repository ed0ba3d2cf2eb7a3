"""Renders evidence as a page that prints well. The page holds the signed evidence, so that it can be verified by itself."""

import json
import re
from collections.abc import Iterator
from html import escape

from alimark.core._util.json_types import JsonObject
from alimark.core.detection.aligned_results import LIKELY, PERHAPS
from alimark.core.detection.statements import counted

_START = '<script type="application/json" id="evidence">'
_END = "</script>"
_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 48rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; }
h2 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
h3 { font-size: 1rem; margin: 1rem 0 .3rem; }
p, ul { margin: .4rem 0; }
code { font-size: .85em; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
td, th { border-bottom: 1px solid #ddd; padding: .25rem .5rem .25rem 0; text-align: left; vertical-align: top; }
th { width: 9rem; font-weight: 600; }
td { overflow-wrap: anywhere; }
.small { color: #555; font-size: .85rem; }
.statement { border-left: 5px solid #777; background: #f4f4f4; padding: .7rem 1rem; font-size: 1.05rem; }
.statement.found { border-color: #1b7f3b; background: #ecf7ef; }
.sentences span { border-radius: 3px; padding: 0 .1rem; }
.likely { background: #b9e6c5; }
.perhaps { background: #fff0b8; }
@media print {
  body { margin: 0; max-width: none; font-size: 10.5pt; }
  .statement, span { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  h2, h3 { break-after: avoid; }
}
"""


def render_json(evidence: JsonObject) -> str:
    """Evidence as the text of a .json file; half a surrogate pair, which UTF-8 does not have, makes all of it ASCII."""
    text = json.dumps(evidence, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(evidence, indent=2, allow_nan=False) + "\n"
    return text


def embedded_evidence(page: str) -> object:
    """The signed evidence that a page holds; raises ValueError where it holds none."""
    start = page.find(_START)
    stop = page.find(_END, start)
    if start < 0 or stop < 0:
        raise ValueError("the page holds no evidence")
    return json.loads(page[start + len(_START) : stop])


def render_page(evidence: JsonObject) -> str:
    """Returns the page of signed evidence: HTML in one file, without scripts and without anything from elsewhere."""
    names = ", ".join(text["document"]["name"] for text in evidence["texts"])
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Evidence: {_safe(names)}</title><style>{_STYLE}</style></head><body>",
        "<h1>Search for a watermark</h1>",
        f'<p class="small">{_safe(evidence["date"])}, alimark {_safe(evidence["alimark"])}, signed by '
        f"<code>{_safe(evidence['signer']['fingerprint'])}</code></p>",
        *(part for text in evidence["texts"] for part in _text_parts(text)),
        *_key_parts(evidence),
        "<h2>What this does not say</h2>",
        f"<ul>{''.join(f'<li>{_safe(item)}</li>' for item in evidence['does_not_say'])}</ul>",
        "<h2>How to repeat it</h2>",
        "<p>Whoever has the document and the key can compute the result again. The signature can be checked without the "
        "key.</p>",
        "".join(f"<p><code>{_safe(command)}</code></p>" for command in evidence["how_to_repeat"]),
        # JSON that cannot end the element that holds it.
        _START + json.dumps(evidence, allow_nan=False).replace("<", "\\u003c") + _END,
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _text_parts(entry: JsonObject) -> Iterator[str]:
    """The section of one document."""
    result, document = entry["result"], entry["document"]
    state = " found" if result["verdict"] == "found" else ""
    yield "<section>"
    yield f'<p class="statement{state}"><bdi>{_safe(entry["statement"])}</bdi></p>'
    yield from (f"<p>{_safe(caveat)}</p>" for caveat in entry.get("caveats", ()))
    rows = [
        ("document", document["name"]),
        ("size", f"{document['size']:,} bytes, {counted(len(result['sentences']), 'sentence')}"),
        ("SHA-256", document["sha256"]),
        ("last changed", document["modified"] or "not known"),
        ("verdict", f"{result['verdict']}, at a false-positive rate of {result['fpr']:g}"),
        ("key", result["key_id"]),
        ("p-value", f"{entry['p_value_shown']}. {entry['p_value_explained']}"),
        ("score", f"{result['score']:.2f} standard deviations above the mean of random keys"),
    ]
    rows += [("detail", line) for line in entry["in_words"]]
    yield _table(rows)
    yield from _sentence_parts(entry)
    yield "</section>"


def _sentence_parts(entry: JsonObject) -> Iterator[str]:
    """The text, with the sentences coloured that probably carry the mark."""
    sentences = entry.get("sentences")
    if not sentences:
        return
    yield "<h3>The sentences that probably carry the mark</h3>"
    yield (
        f'<p class="small">Green: a probability of {100 * LIKELY:.0f}% or more; yellow: {100 * PERHAPS:.0f}% or more; '
        "measured against what random keys give for the same sentence.</p>"
    )
    spans = []
    for sentence in sentences:
        chance = sentence["chance"]
        colour = ' class="likely"' if chance >= LIKELY else ' class="perhaps"' if chance >= PERHAPS else ""
        title = f"sentence {sentence['number']}: {100 * chance:.0f}%"
        spans.append(f'<span{colour} title="{title}">{_safe(sentence["text"])}</span>')
    yield f'<p class="sentences">{" ".join(spans)}</p>'


def _key_parts(evidence: JsonObject) -> Iterator[str]:
    """Key, method and calibration."""
    yield "<h2>Key and method</h2>"
    for key in evidence["keys"]:
        yield _table([(name.replace("_", " "), str(value)) for name, value in key.items()])
    yield "<h2>How often this key finds a mark in human text</h2>"
    calibration = evidence["calibration"]
    if calibration is None:
        yield (
            "<p>Not measured. By its construction, the p-value is right on average over keys. What one key does on many "
            "human texts is measured by <code>alimark calibrate --json</code>, and added with "
            "<code>--calibration</code>.</p>"
        )
        return
    yield f"<p>Measured on {calibration['texts']:,} human texts of {calibration['sentences']} sentences.</p>"
    columns = zip(calibration["levels"], calibration["this_key"]["p"], calibration["interval_99"], strict=True)
    yield _table([
        (f"p <= {level:g}", f"{100 * share:.2f}% of the texts; a sound test gives {100 * low:.2f}% to {100 * high:.2f}%")
        for level, share, (low, high) in columns
    ])  # fmt: skip


def _table(rows: list[tuple[str, str]]) -> str:
    cells = "".join(f"<tr><th>{_safe(name)}</th><td><bdi>{_safe(value)}</bdi></td></tr>" for name, value in rows)
    return f"<table>{cells}</table>"


def _safe(text: str) -> str:
    """Text as HTML. Half a surrogate pair and control characters, which a page cannot hold, are replaced."""
    return escape(re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", str(text)))
