"""Every recipe of the paper: what a run of it lacks on this machine, and small runs of it, to a report.

    python benchmarks/paper_recipes.py check                     # what `alimark bench run --dry-run` says of each
    python benchmarks/paper_recipes.py run work [probing ...]    # 3 short texts of each kind, by local models
    python benchmarks/paper_recipes.py hub work [probing ...] --human booksum.jsonl.gz c4.jsonl.gz nq.jsonl.gz

`run` has the profiles `local` and `small` of `recipes/paper/profiles`. `hub` has the recipes as they stand, but small and on
the CPU, against a model hub on loopback (HF_ENDPOINT) that serves tiny models in the layouts of the real ones: OPT with pickled
weights, Qwen3, gemma-3, Llama in shards, INSTRUCTOR with pickled Dense, SemStamp's pickled MPNet, DistilRoBERTa, Pegasus,
Parrot with its two judges, DIPPER without a vocabulary. The same server stands for OpenAI and for PMark's repository, and a
function for data sets of the hub. Recipes share their records in one folder, so that the time of a recipe is that of what the
recipes before it did not make; a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from alimark.errors import AlimarkError

RECIPES = Path(__file__).parents[1] / "recipes" / "paper"
TESTS = Path(__file__).parents[1] / "tests"
GPT = "openai:https://api.openai.com/v1#gpt-3.5-turbo"
ASKED: set[str] = set()
"""The models of the hub on loopback that files were taken of."""


def run(path: Path, folder: Path, profiles: Sequence[str]) -> str:
    """Runs a recipe to its report, or says what it lacks."""
    from alimark.lab.bench.evaluate import evaluate
    from alimark.lab.bench.recipe_files import load
    from alimark.lab.bench.report import write
    from alimark.lab.bench.requirements import needs
    from alimark.lab.bench.run import Run
    from alimark.lab.bench.workspace import Workspace

    started = time.perf_counter()
    ASKED.clear()
    bench = Run(load(path, [], profiles), Workspace(folder / "work"))
    if missing := needs(bench.recipe).problems:
        raise AlimarkError(f"the dry run misses {'; '.join(missing)}")
    bench.run()
    results = evaluate(bench, path.stem)
    write(folder / "reports" / path.stem, [results])
    failed, texts = (sum(row[name] for row in results["rows"]) for name in ("failed", "texts"))
    of_paper = ", ".join(f"{row['papers']} of {row['set']}" for row in results["data"])
    return (
        f"dry run complete; {len(results['rows'])} rows, {texts} texts, {failed} failed; texts of the paper: {of_paper}; "
        f"{time.perf_counter() - started:.0f} s; loaded {', '.join(sorted(ASKED)) or 'no further model of the hub'}"
    )


# --- Tiny models in the layouts of the real ones


def save_llm(folder: Path, kind: str, **options: Any) -> None:
    """A language model of an architecture, trained on a few sentences so that its sentences end."""
    import torch
    import transformers
    from tiny_models import PARAPHRASES

    from tokenizing import byte_level_tokenizer

    texts = [*PARAPHRASES, *PARAPHRASES.values()]
    bpe = byte_level_tokenizer(texts, 400, "<end>")
    words = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<end>")
    config = getattr(transformers, f"{kind}Config" if kind != "Gemma3" else "Gemma3TextConfig")(
        vocab_size=len(words), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=1024, eos_token_id=0, bos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    ids = torch.tensor(words(" ".join(texts * 3))["input_ids"])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        rows = torch.stack([ids[start : start + 48] for start in torch.randint(len(ids) - 48, (8,)).tolist()])
        optimizer.zero_grad()
        model(input_ids=rows, labels=rows).loss.backward()
        optimizer.step()
    model.save_pretrained(folder, **options)
    words.save_pretrained(folder)


def save_embedder(folder: Path, kind: str) -> None:
    """A sentence embedder on MPNet; or on RoBERTa or the encoder of a T5, with a Dense module whose weights are pickled."""
    import torch
    import transformers
    from safetensors.torch import load_file
    from tiny_models import dipper_pairs, save_judge, save_t5

    from tiny_embedders import make_instructor, make_model

    if kind == "MPNet":
        make_model(folder, "mpnet")
    else:
        make_instructor(folder, pickled=("2_Dense",))
        for file in ("model.safetensors", "tokenizer.json", "tokenizer_config.json", "config.json"):
            (folder / file).unlink()
        with TemporaryDirectory() as inner:
            save_judge(Path(inner)) if kind == "RobertaModel" else save_t5(Path(inner), dipper_pairs(), 0)
            getattr(transformers, kind).from_pretrained(inner).save_pretrained(folder)
            transformers.AutoTokenizer.from_pretrained(inner).save_pretrained(folder)
    if folder.name in ("SemStamp-c4-sbert", "instructor-large"):
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()


def save_models(hub: Path) -> None:
    sys.path[:0] = [str(TESTS), str(TESTS / "lab" / "attacks")]
    from tiny_models import PARAPHRASES, dipper_pairs, save_judge, save_pegasus, save_t5

    from tokenizing import save_opt

    pairs, judged = list(PARAPHRASES.items()), ("contradiction", "neutral", "entailment")
    makers: dict[str, Callable[[Path], object]] = {
        "facebook/opt-1.3b": partial(save_opt, texts=[*PARAPHRASES], frequent={".": 3.5, "Ġ": 3.5, "Ċ": 1.5}),
        "Qwen/Qwen3-1.7B": partial(save_llm, kind="Qwen3"),
        "google/gemma-3-1b-pt": partial(save_llm, kind="Gemma3"),
        "meta-llama/Llama-3.1-8B": partial(save_llm, kind="Llama", max_shard_size="100KB"),
        "AbeHou/SemStamp-c4-sbert": partial(save_embedder, kind="MPNet"),
        "sentence-transformers/all-mpnet-base-v2": partial(save_embedder, kind="MPNet"),
        "sentence-transformers/multi-qa-mpnet-base-dot-v1": partial(save_embedder, kind="MPNet"),
        "sentence-transformers/all-distilroberta-v1": partial(save_embedder, kind="RobertaModel"),
        "hkunlp/instructor-large": partial(save_embedder, kind="T5EncoderModel"),
        "tuner007/pegasus_paraphrase": partial(save_pegasus, pairs=pairs, steps=40),
        "prithivida/parrot_paraphraser_on_T5": partial(
            save_t5, pairs=[(f"paraphrase: {a}", b) for a, b in pairs], steps=40
        ),
        "prithivida/parrot_adequacy_model": partial(save_judge, labels=judged),
        "prithivida/parrot_fluency_model": save_judge,
        "kalpeshk2011/dipper-paraphraser-xxl": partial(save_t5, pairs=dipper_pairs(), steps=40, words=False),
        "google/t5-v1_1-xxl": partial(save_t5, pairs=dipper_pairs(), steps=0),
    }
    for name, save in makers.items():
        if not (hub / name / "config.json").exists():
            (hub / name).mkdir(parents=True, exist_ok=True)
            save(hub / name)


class Stub(BaseHTTPRequestHandler):
    """A model hub with the models in the folder `root`/hub, the files of `root`, and a chat model that repeats its question."""

    root: Path
    protocol_version = "HTTP/1.1"

    def content(self) -> bytes | None:
        if self.path == "/v1/models":
            return b'{"data": [{"id": "gpt-3.5-turbo"}]}'
        model, _, file = self.path.strip("/").partition("?")[0].partition("/resolve/main/")
        if file:
            ASKED.add(model)
        if file or self.path.endswith(".arrow"):
            target = self.root / "hub" / model / file if file else self.root / Path(self.path).name
            return target.read_bytes() if target.is_file() else None
        name = "/".join(model.split("/")[2:4])
        files = [file for file in sorted((self.root / "hub" / name).rglob("*")) if file.is_file()]
        names = [str(file.relative_to(self.root / "hub" / name)) for file in files]
        tree = [{"type": "file", "path": path, "size": 2, "oid": "0" * 40} for path in names]
        about = {"id": name, "sha": "main", "siblings": [{"rfilename": path} for path in names]}
        return json.dumps(tree if "/tree/" in self.path else about).encode() if names else None

    def do_GET(self) -> None:
        self.answer(self.content())

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = "So it is told. " + body["messages"][-1]["content"].strip().rpartition("\n")[2].strip()
        choice = {"message": {"role": "assistant", "content": text}, "index": 0, "finish_reason": "stop"}
        usage = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
        self.answer(json.dumps({"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage}).encode())

    def answer(self, content: bytes | None) -> None:
        self.send_response(404 if content is None else 200)
        headers = {"X-Error-Code": "EntryNotFound"} if content is None else {"X-Repo-Commit": "main"}
        headers |= {"Content-Type": "application/json", "Content-Length": str(len(content or b""))}
        for name, value in (headers | {"ETag": f'"{hashlib.sha256(content or b"").hexdigest()}"'}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content or b"")

    def log_message(self, *_: object) -> None:
        pass


def start_hub(folder: Path, human: Sequence[Path]) -> str:
    """Starts the server and puts it in the place of the real ones; returns a profile that names it."""
    Stub.root = folder
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    os.environ |= {"HF_ENDPOINT": address, "HF_HOME": str(folder / "hf"), "OPENAI_API_KEY": "sk-stub"}
    os.environ.pop("HF_HUB_OFFLINE", None)  # libraries read these when they are imported
    save_models(folder / "hub")
    import pyarrow

    from alimark.core.frozen.text.splitting import splitter
    from alimark.lab.bench import data

    for path in human:
        table = pyarrow.table({"text": [f"{prompt} {text}" for prompt, text in data.pairs(str(path), 12, splitter())]})
        with pyarrow.ipc.new_stream(str(folder / f"{data.label(str(path))}.arrow"), table.schema) as stream:
            stream.write_table(table)
    data.PMARK |= {name: f"{address}/{name}.arrow" for name in data.PMARK}

    def from_hub(name: str) -> Iterator[tuple[str, str]]:
        for prompt, text in islice(data.pairs(str(human[-1]), 12, splitter()), 100, None):
            yield (prompt, text) if name == "nq" else ("", f"{prompt} In {name} it is said. {text}")

    data._from_hub = from_hub
    chat = f'"openai:{address}/v1#gpt-3.5-turbo"'
    mpnet = '"all-mpnet-base-v2" = "sentence-transformers/all-mpnet-base-v2"'  # not the real one of the store
    attack = f'"gpt-3.5" = {{ name = "gpt-3.5", preset = "paper", llm = {chat} }}'
    profile = f'[names]\n"{GPT}" = {chat}\n{mpnet}\n[attack]\n{attack}\n'
    settings = '[set]\nembedder_device = ""\n"llm.options" = {}\n"data.texts" = 2\n'
    (folder / "hub.toml").write_text(profile + settings, "utf-8")
    return str(folder / "hub.toml")


def main() -> int:
    """The exit status is the number of recipes that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["check", "run", "hub"])
    parser.add_argument("output", type=Path, nargs="?", help="a folder for records, reports and models")
    parser.add_argument("recipes", nargs="*", help="names of recipes; all of them by default")
    parser.add_argument("--human", type=Path, nargs=3, help="booksum.jsonl.gz, c4.jsonl.gz and nq.jsonl.gz, for `hub`")
    options = parser.parse_args()
    folder, profiles = (options.output or Path()).resolve(), ["local", "small"]
    if options.verb == "hub":
        folder.mkdir(exist_ok=True)
        profiles = ["small", start_hub(folder, options.human)]
    failed = 0
    for path in sorted(RECIPES.glob("*.toml")):
        if options.recipes and path.stem not in options.recipes:
            continue
        try:
            if options.verb == "check":
                from alimark.lab.bench.recipe_files import load
                from alimark.lab.bench.requirements import needs

                print(f"{path.stem}:", *needs(load(path)).problems or ["lacks nothing"], sep="\n  ")
            else:
                print(f"{path.stem}: {run(path, folder, profiles)}", flush=True)
        except Exception as error:
            failed += 1
            print(f"{path.stem}: FAILED, {type(error).__name__}: {error}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
