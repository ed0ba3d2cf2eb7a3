"""Audits of documents from one template under many keys: false discoveries with and without the check of shared text.

    python benchmarks/receipts.py --keys 20 --receipts 150

Nothing is marked, so that every document found is a false discovery. "before" is the rule of Benjamini and Hochberg alone;
"after" leaves out the documents that the audit calls undecided, because they share text and are found together by chance.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import tempfile
from dataclasses import replace
from pathlib import Path

from alimark import Key
from alimark.audit.run import run
from alimark.audit.worker import Audit
from alimark.core.detection.settings import DetectionSettings

GOODS = (
    "a lamp|two chairs|a kettle|four cups|a garden hose|a box of nails|a blue jacket|an umbrella|a desk|a radio".split(
        "|"
    )
)
TOWNS = "Leeds|Bergen|Porto|Graz|Ghent|Turku|Lyon|Cork|Padua|Basel".split("|")
TEMPLATE = (
    "Thank you for your order number {number}, which we received on {day} March.",
    "We have shipped {goods} to your address in {town}.",
    "The total amount of {amount} euros was charged to your card.",
    "This price includes value-added tax and delivery.",
    "Your parcel will arrive within three to five working days.",
    "If you are not at home, the courier will leave it with a neighbour or at the nearest collection point.",
    "You may return unused goods within thirty days, provided that they are in the original packaging.",
    "Please keep this receipt, because you need it for any claim under the guarantee.",
    "Our customer service answers questions by telephone from Monday to Friday between nine and five.",
    "We would be grateful if you took a minute to rate your purchase on our website.",
)


def receipt(number: int) -> str:
    """A receipt, the same in every run."""
    chance = random.Random(number)
    values = {
        "number": chance.randrange(10_000, 99_999), "day": chance.randrange(1, 31), "goods": chance.choice(GOODS),
        "town": chance.choice(TOWNS), "amount": f"{chance.randrange(500, 40_000) / 100:.2f}",
    }  # fmt: skip
    return " ".join(sentence.format(**values) for sentence in TEMPLATE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=20)
    parser.add_argument("--receipts", type=int, default=150)
    parser.add_argument("--decision", default="soft", choices=("soft", "hard"))
    parser.add_argument("--fdr", type=float, default=0.05)
    args = parser.parse_args()
    before = after = keys_before = keys_after = 0
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "receipts.jsonl"
        lines = [json.dumps({"id": f"receipt-{i}", "text": receipt(i)}) for i in range(args.receipts)]
        source.write_text("\n".join(lines) + "\n")
        for number in range(args.keys):
            secret = hashlib.sha256(f"alimark/receipts/{number}".encode()).digest()
            key = Key.generate(secret=secret, decision=args.decision, embedder="all-MiniLM-L6-v2")
            audit = Audit.of([key], [str(source)], str(Path(folder) / f"{number}.jsonl"), DetectionSettings())
            summary = run(replace(audit, fdr=args.fdr)).summary
            remaining, undecided = summary["found_at_fdr"], summary["shared_text"]["undecided"]
            before, after = before + remaining + undecided, after + remaining
            keys_before, keys_after = keys_before + (remaining + undecided > 0), keys_after + (remaining > 0)
            if remaining + undecided:
                print(
                    f"key {number}: {remaining + undecided} found before, {remaining} after; {summary['shared_text']}"
                )
    total = args.keys * args.receipts
    print(f"{args.decision}: {args.keys} keys, {args.receipts} receipts each, false discovery rate {args.fdr:g}")
    print(f"before: {before} false discoveries of {total} tests, under {keys_before} keys")
    print(f"after: {after} false discoveries, under {keys_after} keys", flush=True)


if __name__ == "__main__":
    main()
