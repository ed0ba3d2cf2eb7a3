"""What one user waits for, the code of another checkout against this one, in turns: `alimark detect` or the service.

    python benchmarks/cold_start.py --before OTHER/src --turns 5                # from a shell
    python benchmarks/cold_start.py --before OTHER/src --turns 30 --service     # POST /v1/detect, two services that are up

Texts of twelve sentences, for the service another one in each turn; a soft key in the shell, a hard one in the service. The
median of the seconds and of the CPU seconds is printed; a busy machine disturbs the latter less. `python -X importtime -m
alimark detect ...` shows what is imported.
"""

from __future__ import annotations

import argparse
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from alimark.core.embedding.loading import load_embedder
from alimark.core.keys.key import Key
from embedding import sentences


def cpu_seconds() -> float:
    """The CPU seconds of all processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def start(command: list[str], source: Path) -> tuple[float, float]:
    """The seconds and CPU seconds of a new process with the code of a `src` folder."""
    before, started = cpu_seconds(), time.perf_counter()
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(source)}, capture_output=True, text=True, check=False
    )
    if done.returncode > 1:
        raise SystemExit(done.stderr)
    return time.perf_counter() - started, cpu_seconds() - before


class Service:
    """A service of the code of a `src` folder, for one user."""

    def __init__(self, folder: Path, model: str, source: Path) -> None:
        folder.mkdir()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(source), str(Path(__file__).parent)])}
        make = "import pathlib, sys, serving; print(*serving.set_up(pathlib.Path(sys.argv[1]), sys.argv[2])[:2])"
        made = subprocess.run(
            [sys.executable, "-c", make, str(folder), model],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        self._key, token = made.stdout.split()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        words = ["--serve", str(folder), str(port), "--embedder", model]
        serving = str(Path(__file__).with_name("serving.py"))
        self.process = subprocess.Popen([sys.executable, serving, *words], env=environment, stderr=subprocess.DEVNULL)
        self._client = httpx.Client(
            base_url=f"http://127.0.0.1:{port}",
            headers={"authorization": f"Bearer {token}"},
            timeout=600,
            trust_env=False,
        )

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def detect(self, text: str) -> tuple[float, float]:
        """The seconds and CPU seconds of one detection."""
        before, started = self.cpu(), time.perf_counter()
        self._client.post("/v1/detect", json={"input": text, "keys": [self._key]}).raise_for_status()
        return time.perf_counter() - started, self.cpu() - before

    def wait(self, text: str) -> None:
        """Waits for the first answer."""
        until = time.monotonic() + 300
        while True:
            try:
                self.detect(text)
                return
            except httpx.HTTPError:
                if time.monotonic() > until or self.process.poll() is not None:
                    raise
                time.sleep(0.2)


def compare_services(args: argparse.Namespace, sources: dict[str, Path]) -> list[dict[str, tuple[float, float]]]:
    texts = [" ".join(sentences(12, seed=seed)) for seed in range(args.turns + 1)]
    with tempfile.TemporaryDirectory() as folder:
        services = {name: Service(Path(folder) / name, args.model, source) for name, source in sources.items()}
        try:
            for service in services.values():
                service.wait(texts[0])
            return [{name: service.detect(text) for name, service in services.items()} for text in texts[1:]]
        finally:
            for service in services.values():
                service.process.kill()
                service.process.wait()


def compare_starts(args: argparse.Namespace, sources: dict[str, Path]) -> list[dict[str, tuple[float, float]]]:
    with tempfile.TemporaryDirectory() as folder:
        key, text = Path(folder) / "key.json", Path(folder) / "text.txt"
        Key.generate(embedder=load_embedder(args.model), secret=bytes(32)).save(key)
        text.write_text(" ".join(sentences(12, seed=3)))
        command = [sys.executable, "-m", "alimark", "detect", "-k", str(key), str(text)]
        for source in sources.values():
            start(command, source)  # compiles kernels
        return [{name: start(command, source) for name, source in sources.items()} for _ in range(args.turns)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="src folder of another checkout")
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--service", action="store_true", help="a detection by a service that is up")
    args = parser.parse_args()
    sources = {"before": args.before, "after": Path(__file__).resolve().parents[1] / "src"}
    turns = (compare_services if args.service else compare_starts)(args, sources)
    for name in sources:
        seconds, cpu = (statistics.median(values) for values in zip(*(turn[name] for turn in turns), strict=True))
        print(f"{name:8} {seconds:6.3f} s, {cpu:5.2f} CPU s")


if __name__ == "__main__":
    main()
