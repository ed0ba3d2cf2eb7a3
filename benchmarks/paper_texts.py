"""Which texts a file or a data set holds, and whether they are the paper's.

    python benchmarks/paper_texts.py c4.jsonl.gz nq.jsonl.gz           # of files
    python benchmarks/paper_texts.py c4 booksum --write folder         # by name; each is written as folder/NAME.jsonl.gz

For each it prints the number of texts, how many differ, how many are the paper's, and a hash of all prompts and texts in order.
`src/alimark/lab/bench/paper_texts.json` was written with `--pins`, from the files that the table of docs/data.md names.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
from itertools import islice
from pathlib import Path

from alimark.core.frozen.text.splitting import splitter
from alimark.lab.bench import data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", help="JSONL files, or names of data sets")
    parser.add_argument("--texts", type=int, default=500, help="the number of texts of each data set")
    parser.add_argument("--write", type=Path, help="a folder for files with `prompt` and `natural_text`")
    parser.add_argument("--pins", type=Path, help="a file for the hashes of the texts")
    options = parser.parse_args()
    pins = {}
    for name in options.names:
        pairs = list(islice(data.pairs(name, 12, splitter()), options.texts))
        hashes = [data.text_hash(prompt + text) for prompt, text in pairs]
        whole = hashlib.sha256("\n".join(hashes).encode()).hexdigest()
        label = data.label(name)
        known = data.paper_texts().get(label, {})
        of_paper = sum(text in known for text in hashes)
        print(f"{label}: {len(pairs)} texts, {len(set(hashes))} different, {of_paper} of the paper, {whole}")
        pins[label] = " ".join(
            f"{text}:{len(''.join(prompt.split()))}" for text, (prompt, _) in zip(hashes, pairs, strict=True)
        )
        if options.write:
            options.write.mkdir(exist_ok=True)
            with gzip.open(options.write / f"{label}.jsonl.gz", "wt", encoding="utf-8") as file:
                for prompt, text in pairs:
                    file.write(json.dumps({"prompt": prompt, "natural_text": text}) + "\n")
    if options.pins:
        options.pins.write_text(json.dumps(pins, indent=0) + "\n", "utf-8")


if __name__ == "__main__":
    main()
