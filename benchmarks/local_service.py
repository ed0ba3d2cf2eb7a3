"""A service in a thread of this process, for benchmarks that measure it beside its engine."""

from __future__ import annotations

import argparse
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from alimark.core.embedding.base import Embedder
from alimark.core.embedding.loading import load_embedder
from alimark.core.generation.settings import STRENGTHS
from alimark.core.keys.key import Key
from alimark.core.llm import load_llm
from alimark.core.llm.base import LLM
from alimark.serve.app import create_app
from alimark.serve.service import Service
from alimark.serve.settings import Settings
from alimark.testing import StandInEmbedder, StandInLLM


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say which models are used and how strongly texts are marked."""
    parser.add_argument("--llm", default="smollm2-135m", help="the engine's model; stand-in needs no weights")
    parser.add_argument("--embedder", default="all-MiniLM-L6-v2")
    parser.add_argument("--device", help="cuda or cpu, for engines and embedders that can choose")
    parser.add_argument("--candidates", type=int, default=64)
    parser.add_argument("--decision", choices=("soft", "hard"), default="soft", help="the kind of key")
    parser.add_argument("--strength", choices=STRENGTHS, help="in place of --candidates, with steering where it can be")
    parser.add_argument("--seed", type=int, default=1)


def load_models(options: argparse.Namespace) -> tuple[LLM, Embedder]:
    """Loads the engine and the embedder that the options name."""
    if options.llm == "stand-in":
        return StandInLLM(ends=0.1), StandInEmbedder()
    on: dict[str, Any] = {"device": options.device} if options.device else {}
    backend: Any = {"backend": "torch", **on} if options.device == "cuda" else {}
    return load_llm(options.llm, **on), load_embedder(options.embedder, **backend)


@dataclass(frozen=True)
class Running:
    """A service that answers, with its key and its models."""

    client: httpx.Client
    key: Key
    llm: LLM
    embedder: Embedder


@contextmanager
def running_service(options: argparse.Namespace) -> Iterator[Running]:
    """Runs a service with a fixed key on loopback."""
    llm, embedder = load_models(options)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            data=Path(folder), port=port, strength=options.strength, llm=llm.name, rate=0, write_queue=256,
            candidates=None if options.strength else options.candidates, concurrency=10_000, timeout=36_000,
        )  # fmt: skip
        service = Service(settings, llm=lambda _: llm, embedder=lambda _: embedder)
        secret = b"benchmarks of chat, 32 bytes in."[:32]
        key = Key.generate(embedder=embedder, secret=secret, decision=options.decision)
        service.ring.add(key)
        token = service.tokens.create(["generate", "detect"])[1]
        service.warm_up()
        server = uvicorn.Server(uvicorn.Config(create_app(service), port=port, log_config=None, access_log=False))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        url, headers = f"http://127.0.0.1:{port}", {"authorization": f"Bearer {token}"}
        with httpx.Client(base_url=url, headers=headers, timeout=None, trust_env=False, verify=False) as client:
            while not server.started:
                time.sleep(0.05)
            yield Running(client, key, llm, embedder)
        server.should_exit = True
        thread.join(10)
