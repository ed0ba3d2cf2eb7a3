"""What the time of a verdict tells, and how a public detector holds when it is flooded.

    python benchmarks/verdicts.py --texts marked.jsonl unmarked.jsonl --key key.json      # times of verdicts
    python benchmarks/verdicts.py --flood 200 --seconds 10                                # latency of the marking side

Times: marked and unmarked texts are checked in random order by the checker of the service, with the settings of the role
verdict and with those of the role detect. AUC is the probability that a marked text takes longer than an unmarked one; 0.5 is
no information. What chance makes of 0.5 is printed beside it.

Flood: a service on stand-in models answers on loopback in a process of its own, first without and then with so many requests a
second to its public detector, from one address and from many. The 50th and 95th percentiles of the seconds of a marked answer
are printed, and what became of the requests.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import httpx

from alimark.core._util.jsonl import read_jsonl
from alimark.core.detection.settings import DetectionSettings
from alimark.core.embedding.loading import load_embedder
from alimark.core.keys.key import Key
from alimark.serve.checking import Check, Checker
from alimark.serve.verdicts import CHECKING

TESTS = Path(__file__).parents[1] / "tests" / "serve"


def auc(marked: Sequence[float], unmarked: Sequence[float]) -> float:
    """The probability that a marked text took longer than an unmarked one; ties count half."""
    wins = sum((a > b) + 0.5 * (a == b) for a in marked for b in unmarked)
    return wins / (len(marked) * len(unmarked))


def times(marked: Sequence[str], unmarked: Sequence[str], key: Key, settings: DetectionSettings, rounds: int) -> None:
    embedder = load_embedder(key.embedder)
    checker = Checker(lambda _: embedder, most=4)
    seconds: dict[bool, list[list[float]]] = {True: [[] for _ in marked], False: [[] for _ in unmarked]}
    order = [
        (is_marked, number) for is_marked, texts in ((True, marked), (False, unmarked)) for number in range(len(texts))
    ]
    checker.detect(Check(marked[0], (key,), settings))
    for turn in range(rounds):
        random.Random(turn).shuffle(order)
        for is_marked, number in order:
            text = (marked if is_marked else unmarked)[number]
            started = time.perf_counter()
            checker.detect(Check(text, (key,), settings))[0].verdict(0.01)
            seconds[is_marked][number].append(time.perf_counter() - started)
    fastest = {kind: [min(each) for each in every] for kind, every in seconds.items()}
    n, m = len(marked), len(unmarked)
    deviation = ((n + m + 1) / (12 * n * m)) ** 0.5
    medians = [1000 * statistics.median(fastest[kind]) for kind in (True, False)]
    print(
        f"{settings.search:8} draws {settings.draws} stop {settings.stop_after and min(settings.stop_after, 99999)}: "
        f"marked {medians[0]:.1f} ms, unmarked {medians[1]:.1f} ms, AUC {auc(fastest[True], fastest[False]):.3f} "
        f"(by chance 0.5 +- {1.96 * deviation:.3f})"
    )


def flood(rate: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, str(TESTS))
        from services import set_up, start_process

        data = Path(folder) / "data"
        tokens = set_up(data)
        service = start_process(data, Path(folder) / "log", public_detector=True)
        try:
            print(f"{'':24} {'answers':>7} {'p50':>7} {'p95':>7}   the detector's answers")
            for name, addresses in (
                ("nobody else", 0),
                ("one address", 1),
                (f"{rate} addresses", rate),
                ("20,000 addresses", 20_000),
            ):
                latencies, outcomes = measure(
                    service.url, tokens["generate"], rate if addresses else 0, addresses, seconds
                )
                cuts = statistics.quantiles(latencies, n=20)
                print(f"{name:24} {len(latencies):7} {cuts[9]:7.3f} {cuts[18]:7.3f}   {dict(sorted(outcomes.items()))}")
        finally:
            service.running.terminate()
            service.running.wait(30)


def measure(url: str, token: str, rate: int, addresses: int, seconds: float) -> tuple[list[float], Counter[int]]:
    """The seconds of marked answers, one after the other, while a detector is asked `rate` times a second."""
    outcomes: Counter[int] = Counter()
    stop = threading.Event()
    text = " ".join(f"Nobody spoke of item {number} on the long list of things." for number in range(12))

    def ask(worker: int, workers: int) -> None:
        with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
            number, starts = worker, time.monotonic()
            while not stop.is_set():
                address = f"198.{18 + number % addresses // 65536}.{number % addresses // 256 % 256}.{number % 256 % addresses}"
                head = {"x-forwarded-for": address}
                outcomes[client.post("/v1/verdict", json={"input": text}, headers=head).status_code] += 1
                number += workers
                stop.wait(max(0.0, starts + (number - worker) / rate - time.monotonic()))

    workers = 20 if rate else 0
    threads = [threading.Thread(target=ask, args=(worker, workers)) for worker in range(workers)]
    for thread in threads:
        thread.start()
    latencies, ends = [], time.monotonic() + seconds
    with httpx.Client(
        base_url=url, trust_env=False, timeout=60, headers={"authorization": f"Bearer {token}"}
    ) as client:
        while time.monotonic() < ends:
            started = time.perf_counter()
            client.post("/v1/completions", json={"prompt": "So.", "sentences": 3}).raise_for_status()
            latencies.append(time.perf_counter() - started)
    stop.set()
    for thread in threads:
        thread.join()
    return latencies, outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", nargs=2, type=Path, metavar=("MARKED", "UNMARKED"), help="JSONL with the field text")
    parser.add_argument("--key", type=Path)
    parser.add_argument("--most", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flood", type=int, default=0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    if options.texts:
        marked, unmarked = (
            [row["text"] for _, row in read_jsonl(path) if isinstance(row, dict)][: options.most]
            for path in options.texts
        )
        for settings in (CHECKING, replace(CHECKING, search="auto", stop_after=50)):
            times(marked, unmarked, Key.load(options.key), settings, options.rounds)
    if options.flood:
        flood(options.flood, options.seconds)


if __name__ == "__main__":
    main()
