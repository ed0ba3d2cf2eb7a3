"""Seconds of a new user's first steps by README: install, init, serve, and the curl line that init prints.

    python benchmarks/first_hour.py                    # in a fresh virtual environment, with the weights that are there
    python benchmarks/first_hour.py --download         # fetches the weights again, into a folder of its own
    python benchmarks/first_hour.py --here             # the installed alimark, without installing it

All is done in a temporary folder, which is removed at the end.
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


class Steps:
    """Runs commands one after the other and prints the seconds of each."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment, self._started, self._total, self._cpu = environment, time.perf_counter(), 0.0, 0.0

    def lap(self, name: str, pid: int | None = None) -> None:
        """Prints a step: its seconds, all so far, and its seconds of CPU time, of a running process or of one that ended."""
        seconds = time.perf_counter() - self._started
        self._started, self._total = time.perf_counter(), self._total + seconds
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = ended.ru_utime + ended.ru_stime
        if pid is not None:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            cpu += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        print(f"| {name} | {seconds:.1f} | {self._total:.1f} | {cpu - self._cpu:.1f} |", flush=True)
        self._cpu = cpu

    def run(self, name: str, *command: str) -> str:
        done = subprocess.run(command, check=False, env=self._environment, text=True, capture_output=True)
        if done.returncode:
            raise SystemExit(f"{shlex.join(command)} failed:\n{done.stderr[-2000:]}")
        self.lap(name)
        return done.stderr


def first_answer(command: str, steps: Steps, pid: int) -> None:
    """Runs the printed curl line, and notes its first sentence and its end."""
    with subprocess.Popen(shlex.split(command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as curl:
        assert curl.stdout is not None
        text = ""
        for line in curl.stdout:
            if '"sentence"' in line and '"sentence"' not in text:
                steps.lap("curl: first sentence", pid)
            text += line
    steps.lap("curl: whole answer", pid)
    if '"marked": true' not in text:
        raise SystemExit(f"the answer is not marked: {text[-500:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--download", action="store_true", help="fetch the weights, too")
    parser.add_argument("--here", action="store_true", help="use the installed alimark")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = os.environ | ({"ALIMARK_HOME": str(folder / "home")} if options.download else {})
        steps, data, programs = Steps(environment), str(folder / "data"), Path(sys.executable).parent
        print("| step | seconds | sum | CPU seconds |\n| --- | ---: | ---: | ---: |")
        if not options.here:
            programs = folder / "venv" / "bin"
            steps.run("virtual environment", sys.executable, "-m", "venv", str(programs.parent))
            install = ("install", "-q", "-e", f"{ROOT}[llama-cpp,serve]")
            steps.run("pip install -e '.[llama-cpp,serve]'", str(programs / "pip"), *install)
        printed = steps.run("alimark serve init", str(programs / "alimark"), "serve", "init", "--data", data)
        with subprocess.Popen(
            [str(programs / "alimark"), "serve", "--data", data], env=environment, stderr=subprocess.PIPE, text=True
        ) as service:
            assert service.stderr is not None
            try:
                if not any("serving at" in line for line in service.stderr):
                    raise SystemExit("the service did not start")
                steps.lap("alimark serve, until it is ready", service.pid)
                first_answer(
                    next(line for line in printed.splitlines() if line.startswith("curl ")), steps, service.pid
                )
            finally:
                service.terminate()


if __name__ == "__main__":
    main()
