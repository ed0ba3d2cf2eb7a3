"""Every verb in an environment with the core only: it works, or names the extra that it needs; never a bare import error."""

import subprocess
import sys
from pathlib import Path

PROGRAM = r"""
import contextlib, io, re, sys
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

def names(requirements):
    return {re.split(r"[\[<>=;!~\s(]", line)[0].lower().replace("_", "-") for line in requirements}

def with_what_they_need(distributions):
    known, waiting = set(), set(distributions)
    while waiting:
        known |= waiting
        found = set()
        for name in waiting:
            with contextlib.suppress(PackageNotFoundError):
                found |= names(line for line in requires(name) or [] if "extra" not in line)
        waiting = found - known
    return known

lines = requires("alimark")
core = with_what_they_need(names(line for line in lines if "extra ==" not in line))
extras = names(line for line in lines if "extra ==" in line) - core - {"alimark"}
blocked = {module for module, owners in packages_distributions().items() if names(owners) & extras}
find_spec = PathFinder.find_spec
PathFinder.find_spec = classmethod(
    lambda cls, name, path=None, target=None: None if name.partition(".")[0] in blocked else find_spec(name, path, target)
)
from alimark.cli import main

for line in sys.stdin.read().splitlines():
    sys.argv, output = ["alimark", *line.split()], io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            status = main.main()
        except SystemExit as error:
            status = error.code
    print(line, status or 0, " ".join(output.getvalue().split())[-300:], sep="\t")
"""
VERBS = {
    "keygen --embedder stand-in -o key.json": (0, ""),
    "keygen --scheme kgw -o kgw.json": (0, ""),
    "generate -k key.json -p Once --llm smollm2-135m": (2, "llama-cpp"),
    "generate -k kgw.json -p Once --llm smollm2-135m": (2, "llama-cpp"),
    "generate -k key.json -p Once --llm transformers:smollm2-135m": (2, "transformers"),
    "generate -k key.json -p Once --llm openai:http://127.0.0.1:1/v1": (2, "openai"),
    "generate -k key.json -p Once --llm vllm:smollm2-135m": (2, "vllm"),
    "generate -k key.json --input texts.jsonl --output out.jsonl --engine ray": (2, "ray"),
    "rewrite -k key.json text.txt": (2, "llama-cpp"),
    "detect -k key.json text.txt": (1, ""),
    "detect -k key.json text.txt --report evidence.json": (1, ""),
    "detect -k key.json text.txt --report evidence.html --timestamp http://127.0.0.1:1": (2, "documents"),
    "verify evidence.json text.txt": (0, ""),
    "audit -k key.json texts.jsonl -o found.jsonl": (0, ""),
    "audit -k key.json texts.jsonl -o found": (2, "ray"),
    "attack list": (0, ""),
    "attack delete text.txt": (0, ""),
    "attack synonyms text.txt": (2, "lab"),
    "attack translate text.txt": (2, "lab"),
    "attack dipper text.txt": (2, "transformers"),
    "fit k-semstamp --human texts.jsonl -o regions.npz": (2, "lab"),
    "compare alimark kgw": (2, "lab"),
    "bench run smoke -o work": (2, "lab"),
    "bench report work": (2, "lab"),
    "bench view work": (2, "lab"),
    "models list": (0, ""),
    "plugins list": (0, ""),
    "serve init": (2, "serve"),
    "serve": (2, "serve"),
    "demo": (2, "llama-cpp"),
}
"""Each verb, its exit status, and the extra that it names."""


def test_every_verb_works_or_names_the_extra_that_it_needs(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(
        "The harbour was quiet. A boat came in. Nobody saw it land. The keeper slept on."
    )
    (tmp_path / "texts.jsonl").write_text(
        '{"id": "1", "text": "The harbour was quiet. A boat came in.", "prompt": "Once"}\n'
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        input="\n".join(VERBS),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    answers = {line.split("\t")[0]: line.split("\t")[1:] for line in done.stdout.splitlines()}
    assert list(answers) == list(VERBS)
    for line, (status, extra) in VERBS.items():
        assert int(answers[line][0]) == status, (line, answers[line])
        assert "ModuleNotFoundError" not in answers[line][1], (line, answers[line])
        assert (f"pip install 'alimark[{extra}]'" if extra else "") in answers[line][1], (line, answers[line])
