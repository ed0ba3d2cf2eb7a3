"""The shell and Python blocks of README and docs/ run, on stand-in models, or say why not; links between pages lead somewhere.

`<!-- no-run: REASON -->` before a block leaves it out, and `<!-- no-run below: REASON -->` all further blocks of the page. The
options and files that such a block names are still checked. Shell blocks are interpreted here: `alimark`, `cat`, `&&`, `>`.
`python tests/test_documentation.py` lists the blocks that are left out.
"""

import ast
import json
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("markdown_it")

import typer.main
from markdown_it import MarkdownIt

import alimark
import alimark.core.embedding.loading
import alimark.core.llm
import alimark.core.schemes.base
import small_documents
from alimark.cli.main import app
from alimark.core.generation.settings import STRENGTHS
from alimark.core.keys.key import DEFAULT_EMBEDDER
from alimark.core.schemes.alimark import AliMark
from alimark.testing import StandInEmbedder, StandInLLM
from commands import Run

REPOSITORY = Path(__file__).parents[1]
SOURCE = REPOSITORY / "src" / "alimark"
ROOT = typer.main.get_command(app)
GENERATED = {"docs/reference/cli.md", "docs/reference/http.md"}
_SHELL = re.compile(r"(alimark|pip|python|make|cat|curl|time|git|docker|podman|\.venv/\S+) ")
_PYTHON = re.compile(r"\bimport |\w\.\w+\(")
_NO_RUN = re.compile(r"<!-- no-run( below)?: (.+?) -->", re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s#:]+)(?:#[^)\s]*)?\)")


@dataclass(frozen=True)
class Block:
    """A shell or Python block of a page."""

    page: str
    line: int
    kind: str
    content: str
    reason: str | None
    """Why it is not run; None if it is run."""


def pages() -> list[str]:
    files = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
    names = [str(file.relative_to(REPOSITORY)) for file in files]
    return [name for name in names if name not in GENERATED and "_build" not in name]


def kind_of(language: str, content: str) -> str | None:
    """The kind of a block, "sh" or "python"; of a block without a language by its content. None for other blocks."""
    if language:
        return {"sh": "sh", "bash": "sh", "console": "sh", "python": "python"}.get(language)
    if _SHELL.match(content.lstrip()):
        return "sh"
    try:
        ast.parse(content)
    except SyntaxError:
        return None
    return "python" if _PYTHON.search(content) else None


def blocks(page: str) -> Iterator[Block]:
    tokens = MarkdownIt().parse((REPOSITORY / page).read_text(encoding="utf-8"))
    below: str | None = None
    before: str | None = None
    for token in tokens:
        marker = _NO_RUN.search(token.content) if token.type == "html_block" else None
        if marker and marker[1]:
            below = marker[2]
        elif token.type in ("fence", "code_block") and (kind := kind_of(token.info.strip(), token.content)):
            assert token.map is not None
            yield Block(page, token.map[0] + 1, kind, token.content, before or below)
        before = marker[2] if marker and not marker[1] else None


def all_blocks() -> list[Block]:
    return [block for page in pages() for block in blocks(page)]


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each line, without comments; `&&`, `>` and `|` are words of their own."""
    for line in block.content.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="<>|&")
        lexer.whitespace_split = True
        if words := list(lexer):
            yield words


def split_at(words: list[str], separator: str) -> Iterator[list[str]]:
    while separator in words:
        index = words.index(separator)
        yield words[:index]
        words = words[index + 1 :]
    yield words


# Blocks that run


def stand_in_embedder(name: str = DEFAULT_EMBEDDER, **_: object) -> StandInEmbedder:
    """An embedder without weights that passes for the one that is named, so that keys of that embedder can be used."""
    dimension = {"all-MiniLM-L6-v2": 384, "all-mpnet-base-v2": 768}.get(name)
    if dimension is None:
        return StandInEmbedder()
    embedder = StandInEmbedder(dimension, name)
    embedder.fingerprint = alimark.Key.generate(embedder=name).fingerprint
    return embedder


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the blocks name."""
    folder = tmp_path_factory.mktemp("material")
    key = alimark.Key.generate(secret=bytes(range(32)))
    text = AliMark(key, embedder=stand_in_embedder()).generate("A day.", StandInLLM(), sentences=12, candidates=16).text
    key.save(folder / "key.json")
    (folder / "keys").mkdir()
    key.save(folder / "keys" / "first.json")
    for name in ("text.txt", "page.txt", "letter.txt", "memo.txt", "book.txt"):
        (folder / name).write_text(text, encoding="utf-8")
    records = [json.dumps({"id": str(number), "prompt": "A day at sea.", "text": text}) + "\n" for number in range(2)]
    for name in ("prompts.jsonl", "texts.jsonl", "docs.jsonl"):
        (folder / name).write_text("".join(records), encoding="utf-8")
    (folder / "report.docx").write_bytes(small_documents.docx(text))
    (folder / "paper.pdf").write_bytes(small_documents.pdf("The first sentence. The second sentence."))
    shutil.copytree(REPOSITORY / "recipes", folder / "recipes")
    return folder


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever model a block names, it gets the stand-in; and it gets few candidates, to save time."""
    monkeypatch.setattr(alimark.core.schemes.base.SentenceWatermark, "candidates", 8)
    monkeypatch.setitem(cast("dict[str, int]", STRENGTHS), "strong", 16)
    for module in (alimark, alimark.core.llm):
        monkeypatch.setattr(module, "load_llm", lambda *_, **__: StandInLLM())
    for module in (alimark, alimark.core.embedding.loading):
        monkeypatch.setattr(module, "load_embedder", stand_in_embedder)
    # Not `load_embedder` of that module: its answers are cached, so later tests would get the stand-in as well.
    monkeypatch.setattr(alimark.core.schemes.base, "_load_embedder", stand_in_embedder)


@pytest.mark.parametrize("page", [page for page in pages() if any(block.reason is None for block in blocks(page))])
@pytest.mark.usefixtures("stand_ins")
def test_blocks_run(page: str, material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Run) -> None:
    folder = tmp_path / "work"
    shutil.copytree(material, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ALIMARK_SIGNING_KEY", str(tmp_path / "signing-key.pem"))
    text = (folder / "text.txt").read_text(encoding="utf-8")
    # What a page may use without saying so.
    names: dict[str, object] = {"alimark": alimark, "text": text, "texts": [text], "key": alimark.Key.load("key.json")}
    for block in blocks(page):
        if block.reason is not None:
            continue
        if block.kind == "python":
            exec(compile(block.content, f"{page}:{block.line}", "exec"), names)
            continue
        for words in commands(block):
            for part in split_at(words, "&&"):
                run(part, f"{page}:{block.line}: {' '.join(part)}", command)


def run(words: list[str], where: str, command: Run) -> None:
    """Runs a command of a shell block."""
    output = None
    if ">" in words:
        index = words.index(">")
        output = words[index + 1]
        words = words[:index]
    if words[:2] == ["pip", "install"]:
        return  # its extras are checked below
    if words[0] == "alimark":
        if "-o" in words and words[1] == "keygen":
            Path(words[words.index("-o") + 1]).unlink(missing_ok=True)
        done = command(*words[1:])
        # 1: not found. The stand-in embedder does not know meaning, so an attacked text may be lost.
        assert done.status == 0 or (words[1] == "detect" and done.status == 1), f"{where}\n{done.err}"
        printed = done.out
    elif words[0] == "cat":
        printed = "".join(Path(name).read_text(encoding="utf-8") for name in words[1:])
    else:
        pytest.fail(f"{where}: this test does not run `{words[0]}`; mark the block `<!-- no-run: REASON -->`")
    if output:
        Path(output).write_text(printed, encoding="utf-8")


# All blocks, those that are not run included


def test_every_block_that_is_not_run_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    skipped = [block for block in all_blocks() if block.reason is not None]
    assert all(len(block.reason or "") > 10 for block in skipped)
    with capsys.disabled():
        print(f"\n{len(all_blocks())} shell and Python blocks in README and docs, {len(skipped)} of them not run")  # noqa: T201


def options_of(words: list[str]) -> tuple[str, set[str]] | None:
    """The name and the options of the command that the words call; None where the options depend on an attack."""
    command: Any = ROOT
    name = []
    while words and words[0] in getattr(command, "commands", {}):
        name.append(words[0])
        command = command.commands[words[0]]
        words = words[1:]
    if command.context_settings.get("ignore_unknown_options"):
        return None
    options = {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}
    return " ".join(name), options | {"--help", "--debug", "--version"}


def problem_of(words: list[str]) -> str | None:
    """What is wrong with a command: an option, a script, an extra or a target that does not exist."""
    if words[0] == "alimark" and (known := options_of(words[1:])):
        name, options = known
        given = [word.partition("=")[0].strip("[]") for word in words if word.strip("[]").startswith("--")]
        unknown = [option for option in given if option not in options]
        return f"alimark {name} has no option {unknown[0]}" if unknown else None
    if words[0] == "python" and len(words) > 1 and words[1].endswith(".py"):
        return None if (REPOSITORY / words[1]).is_file() else f"there is no file {words[1]}"
    if words[:2] == ["pip", "install"] and (extras := re.search(r"\[(.+)\]", words[-1])):
        settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
        unknown = sorted(set(extras[1].split(",")) - set(settings["project"]["optional-dependencies"]))
        return f"there is no extra {unknown[0]}" if unknown else None
    if words[0] == "make" and f"\n{words[1]}:" not in (REPOSITORY / "Makefile").read_text(encoding="utf-8"):
        return f"there is no target {words[1]}"
    return None


def test_commands_name_options_scripts_and_extras_that_exist() -> None:
    problems = [
        f"{block.page}:{block.line}: {problem}"
        for block in all_blocks()
        if block.kind == "sh"
        for words in commands(block)
        for joined in split_at(words, "&&")
        for part in split_at(joined, "|")
        if part and (problem := problem_of(part))
    ]
    assert problems == []


def test_links_between_pages_lead_somewhere() -> None:
    missing = []
    for page in [*pages(), "ARCHITECTURE.md", "SECURITY.md", "CHANGELOG.md"]:
        file = REPOSITORY / page
        text = re.sub(r"```.*?```|`[^`\n]+`", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
        missing += [f"{page}: {target}" for target in _LINK.findall(text) if not (file.parent / target).exists()]
    generated = {str(Path(name).relative_to("docs")) for name in GENERATED}
    assert [link for link in missing if not link.endswith(tuple(generated))] == []


def test_files_that_documents_name_exist_and_hold_what_they_say() -> None:
    """Behind a file in backticks stand names that it defines, as in "`core/keys/files.py`, `decode`", or a test after "::"."""
    problems = []
    for page in [*pages(), "ARCHITECTURE.md"]:
        text = (REPOSITORY / page).read_text(encoding="utf-8")
        for path, name, test in re.findall(r"`((?:\w+/)+(?:\w+\.py)?)(?:`, `([\w.]+)`|::(\w+)`|`)", text):
            file = next((root / path for root in (SOURCE, REPOSITORY) if (root / path).exists()), None)
            wanted = name.rpartition(".")[2] or test
            if file is None:
                problems.append(f"{page}: there is no {path}")
            elif wanted and not re.search(rf"\b{wanted}\b", file.read_text(encoding="utf-8")):
                problems.append(f"{page}: {path} has no {wanted}")
    assert problems == []


def test_every_public_name_is_in_the_reference() -> None:
    page = (REPOSITORY / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    names = set(re.findall(r":: alimark\.(\w+)$", page, re.MULTILINE))
    assert set(alimark.__all__) - {"__version__", "AlimarkError"} <= names


if __name__ == "__main__":
    for block in all_blocks():
        if block.reason is not None:
            print(f"{block.page}:{block.line}: {block.reason}")  # noqa: T201
