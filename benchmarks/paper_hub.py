"""Every recipe of the paper against a model hub on this machine that serves tiny models in the layouts of the real ones.

    python benchmarks/paper_hub.py work --human booksum.jsonl.gz c4.jsonl.gz nq.jsonl.gz [--recipes main-opt probing]

The recipes stand as they are, but that they run on the CPU and are small (profile `small`, two texts). The hub is HF_ENDPOINT
on loopback: OPT with pickled weights, Qwen3, gemma-3, Llama in shards, INSTRUCTOR with pickled Dense, SemStamp's pickled
MPNet, DistilRoBERTa, Pegasus, Parrot with its two judges, and DIPPER without a vocabulary. The same server stands for OpenAI
and PMark's repository. It prints of each recipe what the dry run missed, what was loaded from the hub, and how many rows the
report has.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

REPOSITORY = Path(__file__).parents[1]
sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "tests" / "lab" / "attacks")]
RECIPES = REPOSITORY / "recipes" / "paper"
GPT = "openai:https://api.openai.com/v1#gpt-3.5-turbo"


def save_llm(folder: Path, kind: str, **options: Any) -> None:
    """A tiny language model of an architecture, trained on a few sentences so that its sentences end."""
    import torch
    import transformers
    from tiny_models import PARAPHRASES

    from tokenizing import byte_level_tokenizer

    texts = [*PARAPHRASES, *PARAPHRASES.values()]
    words = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_level_tokenizer(texts, 400, "<end>"), eos_token="<end>"
    )
    config = getattr(transformers, f"{kind}{'Text' * (kind == 'Gemma3')}Config")(
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


def save_opt(folder: Path) -> None:
    from tiny_models import PARAPHRASES

    import tokenizing

    tokenizing.save_opt(folder, [*PARAPHRASES], {".": 3.5, "Ġ": 3.5, "Ċ": 1.5})


def save_encoder(folder: Path, kind: str) -> None:
    """A sentence embedder on MPNet, RoBERTa or the encoder of a T5, with safetensors or pickled weights as on the hub."""
    import torch
    import transformers
    from tiny_models import dipper_pairs, save_judge, save_t5

    from tiny_embedders import make_instructor, make_model

    if kind in ("mpnet", "mpnet-pickled"):
        make_model(folder, "mpnet")
    else:
        make_instructor(folder, pickled=("2_Dense",))
        for file in ("model.safetensors", "tokenizer.json", "tokenizer_config.json", "config.json"):
            (folder / file).unlink()
        with TemporaryDirectory() as inner:
            save = save_judge if kind == "roberta" else partial(save_t5, pairs=dipper_pairs(), steps=0)
            save(Path(inner))
            architecture = transformers.RobertaModel if kind == "roberta" else transformers.T5EncoderModel
            architecture.from_pretrained(inner).save_pretrained(folder)
            transformers.AutoTokenizer.from_pretrained(inner).save_pretrained(folder)
    if kind in ("mpnet-pickled", "t5"):
        from safetensors.torch import load_file

        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()


def models() -> dict[str, Callable[[Path], object]]:
    """How each model of the recipes is made."""
    from tiny_models import PARAPHRASES, dipper_pairs, save_judge, save_pegasus, save_t5

    pairs = list(PARAPHRASES.items())
    return {
        "facebook/opt-1.3b": save_opt,
        "Qwen/Qwen3-1.7B": lambda folder: save_llm(folder, "Qwen3"),
        "google/gemma-3-1b-pt": lambda folder: save_llm(folder, "Gemma3"),
        "meta-llama/Llama-3.1-8B": lambda folder: save_llm(folder, "Llama", max_shard_size="100KB"),
        "AbeHou/SemStamp-c4-sbert": lambda folder: save_encoder(folder, "mpnet-pickled"),
        "sentence-transformers/multi-qa-mpnet-base-dot-v1": lambda folder: save_encoder(folder, "mpnet"),
        "sentence-transformers/all-distilroberta-v1": lambda folder: save_encoder(folder, "roberta"),
        "hkunlp/instructor-large": lambda folder: save_encoder(folder, "t5"),
        "tuner007/pegasus_paraphrase": lambda folder: save_pegasus(folder, pairs, 40),
        "prithivida/parrot_paraphraser_on_T5": lambda folder: save_t5(
            folder, [(f"paraphrase: {a}", b) for a, b in pairs], 40
        ),
        "prithivida/parrot_adequacy_model": lambda folder: save_judge(
            folder, ["contradiction", "neutral", "entailment"]
        ),
        "prithivida/parrot_fluency_model": save_judge,
        "kalpeshk2011/dipper-paraphraser-xxl": lambda folder: save_t5(folder, dipper_pairs(), 40, words=False),
        "google/t5-v1_1-xxl": lambda folder: save_t5(folder, dipper_pairs(), 0),
    }


class Server(ThreadingHTTPServer):
    """The hub, files below /data, and a chat model that gives a text back with its words in capitals exchanged."""

    def __init__(self, hub: Path, files: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.hub, self.files, self.asked = hub, files, set[str]()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def content(self, path: str) -> bytes | None:
        if path == "/v1/models":
            return b'{"data": [{"id": "gpt-3.5-turbo"}]}'
        if path.startswith("/data/"):
            return (self.files / path.removeprefix("/data/")).read_bytes()
        repository, _, file = path.partition("/resolve/")
        if file:
            self.asked.add(repository.strip("/"))
            target = self.hub / repository.strip("/") / file.partition("/")[2].partition("?")[0]
            return target.read_bytes() if target.is_file() else None
        folder = self.hub / "/".join(path.removeprefix("/api/models/").split("/")[:2]).partition("?")[0]
        if not folder.is_dir():
            return None
        names = [str(file.relative_to(folder)) for file in sorted(folder.rglob("*")) if file.is_file()]
        tree = [{"type": "file", "path": name, "size": 2, "oid": "0" * 40} for name in names]
        about = {
            "id": str(folder.relative_to(self.hub)),
            "sha": "0" * 40,
            "siblings": [{"rfilename": name} for name in names],
        }
        return json.dumps(tree if "/tree/" in path else about).encode()


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer(self.server.content(self.path))

    def do_GET(self) -> None:
        self.answer(self.server.content(self.path))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = body["messages"][-1]["content"].strip().rpartition("\n")[2].strip()
        answer = {
            "message": {"role": "assistant", "content": f"So it is told. {text}"},
            "index": 0,
            "finish_reason": "stop",
        }
        usage = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
        self.answer(json.dumps({"id": "1", "object": "chat.completion", "choices": [answer], "usage": usage}).encode())

    def answer(self, content: bytes | None) -> None:
        self.send_response(404 if content is None else 200)
        if content is None:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content or b"")))
        self.send_header("ETag", f'"{hashlib.sha256(content or b"").hexdigest()}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content or b"")

    def log_message(self, *_: object) -> None:
        pass


def prepare(folder: Path, human: list[Path]) -> Server:
    """Makes the models and the data, and puts the servers in the place of the real ones."""
    server = Server(folder / "hub", folder)
    os.environ |= {"HF_ENDPOINT": server.address, "HF_HOME": str(folder / "hf"), "OPENAI_API_KEY": "sk-stub"}
    os.environ.pop("HF_HUB_OFFLINE", None)  # libraries read both when they are imported
    for name, save in models().items():
        if not (folder / "hub" / name / "config.json").exists():
            (folder / "hub" / name).mkdir(parents=True, exist_ok=True)
            save(folder / "hub" / name)
    import pyarrow

    from alimark.core.frozen.text.splitting import splitter
    from alimark.lab.bench import data

    for path in human:
        table = pyarrow.table({"text": [f"{prompt} {text}" for prompt, text in data.pairs(str(path), 12, splitter())]})
        with pyarrow.ipc.new_stream(str(folder / f"{data.label(str(path))}.arrow"), table.schema) as stream:
            stream.write_table(table)
    data.PMARK |= {name: f"{server.address}/data/{name}.arrow" for name in data.PMARK}

    def load_dataset(source: str, **_: object) -> Iterator[dict[str, str]]:
        for prompt, text in islice(data.pairs(str(human[-1]), 12, splitter()), 100, None):
            yield {"query": prompt, "answer": text, "text": f"{source} {text}", "summary_text": f"{source} {text}"}

    sys.modules["datasets"] = SimpleNamespace(load_dataset=load_dataset)  # type: ignore[assignment]
    (folder / "stub.toml").write_text(
        f'[names]\n"{GPT}" = "openai:{server.address}/v1#gpt-3.5-turbo"\n[attack]\n"gpt-3.5" = {{ name = "gpt-3.5", '
        f'preset = "paper", llm = "openai:{server.address}/v1#gpt-3.5-turbo" }}\n'
        '[set]\nembedder_device = ""\n"llm.options" = {}\n"data.texts" = 2\n',
        "utf-8",
    )
    return server


def run(path: Path, folder: Path, server: Server) -> str:
    """Runs a recipe to its report."""
    from alimark.lab.bench.evaluate import evaluate
    from alimark.lab.bench.recipe_files import load
    from alimark.lab.bench.report import write
    from alimark.lab.bench.requirements import needs
    from alimark.lab.bench.results import save
    from alimark.lab.bench.run import Run
    from alimark.lab.bench.workspace import Workspace

    started = time.perf_counter()
    server.asked.clear()
    recipe = load(path, [], ["small", str(folder / "stub.toml")])
    workspace = Workspace(folder / "work")
    if missing := needs(recipe).problems:
        return f"dry run misses {'; '.join(missing)}"
    bench = Run(recipe, workspace)
    bench.run()
    results = evaluate(bench, path.stem)
    save(workspace.results(path.stem), results)
    write(folder / "reports" / path.stem, [results])
    failed = sum(row["failed"] for row in results["rows"])
    texts = sum(row["texts"] for row in results["rows"])
    papers = [row["papers"] for row in results["data"]]
    return (
        f"dry run complete; {len(results['rows'])} rows, {texts} texts, {failed} of them failed, texts of the paper {papers}; "
        f"{time.perf_counter() - started:.0f} s; loaded: {', '.join(sorted(server.asked)) or 'what earlier recipes loaded'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument(
        "--human", type=Path, nargs="+", required=True, help="booksum.jsonl.gz, c4.jsonl.gz and nq.jsonl.gz"
    )
    parser.add_argument("--recipes", nargs="*", default=[], help="names of recipes; all of them by default")
    options = parser.parse_args()
    server = prepare(options.output.resolve(), options.human)
    for path in sorted(RECIPES.glob("*.toml")):
        if not options.recipes or path.stem in options.recipes:
            try:
                print(f"{path.stem}: {run(path, options.output.resolve(), server)}", flush=True)
            except Exception as error:
                traceback.print_exc()
                print(f"{path.stem}: FAILED, {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main()
