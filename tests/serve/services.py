"""Starts services for the tests, in a thread or as a separate process."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

import httpx
import uvicorn
from stand_ins import stand_in_service

from alimark.core.keys.key import Key
from alimark.serve.app import create_app
from alimark.serve.service import Service
from alimark.testing import StandInEmbedder


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
        return port


@dataclass
class Running:
    """A service that answers on loopback, with a token of each role."""

    url: str
    service: Service
    tokens: dict[str, str]

    @property
    def key(self) -> Key:
        """The first key of the service."""
        return self.service.ring.key(self.service.ring.all()[0].id)

    def client(self, role: str | None) -> httpx.Client:
        headers = {} if role is None else {"authorization": f"Bearer {self.tokens[role]}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False, verify=False)


@contextmanager
def serving(data: Path, **settings: Any) -> Iterator[Running]:
    """Sets up a service and runs it in a thread of this process."""
    with serving_again(data, set_up(data, **settings), **settings) as running:
        yield running


@contextmanager
def serving_again(data: Path, tokens: dict[str, str], **settings: Any) -> Iterator[Running]:
    """Runs a service that was set up before in a thread of this process."""
    service = stand_in_service(data, **settings)
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(create_app(service), port=port, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(f"http://127.0.0.1:{port}")
    yield Running(f"http://127.0.0.1:{port}", service, tokens)
    server.should_exit = True
    thread.join(10)


def wait_for(url: str, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    with httpx.Client(trust_env=False, verify=False) as client:  # loading certificates would take longer than the test
        while time.monotonic() < until:
            try:
                if client.get(f"{url}/healthz").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.05)
    raise TimeoutError(url)


@dataclass
class Process:
    """A service in a separate process; `log` is the file of its stderr."""

    url: str
    running: subprocess.Popen[bytes]
    log: Path


def start_process(data: Path, log: Path, **settings: Any) -> Process:
    port = free_port()
    words = [f"{name}={value if name == 'database' else json.dumps(value)}" for name, value in settings.items()]
    with log.open("ab") as file:
        running = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("stand_ins.py")), str(data), str(port), *words],
            stderr=file, stdout=file,
        )  # fmt: skip
    wait_for(f"http://127.0.0.1:{port}")
    return Process(f"http://127.0.0.1:{port}", running, log)


def set_up(data: Path, **settings: Any) -> dict[str, str]:
    """Creates a key and a token of each role, as an operator does before the first start."""
    service = stand_in_service(data, **settings)
    # A fixed key: with a random key, tests of what is found would fail now and then.
    service.ring.add(
        Key.generate(embedder=StandInEmbedder(), decision="hard", secret=b"a key of the tests, 32 bytes long"[:32])
    )
    tokens = {role: service.tokens.create([role], name=role)[1] for role in ("generate", "detect", "verdict", "admin")}
    service.close()
    return tokens
