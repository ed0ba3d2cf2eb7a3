"""Each counter of tools/count_code.py on sources of a few lines."""

from __future__ import annotations

import ast
import json
from pathlib import Path, PurePosixPath

import pytest

import count_code
from count_code import Count, Module


def module(source: str, path: str = "room/public.py") -> Module:
    return Module(PurePosixPath(path), source, ast.parse(source))


def numbers(counts: list[Count]) -> list[int]:
    return [count.number for count in counts]


def long_function(lines: int, decorator: str = "") -> str:
    return f"{decorator}\ndef work():\n" + "    pass\n" * (lines - 1)


def test_lines_and_modules_of_the_root() -> None:
    names = ("__init__.py", "__main__.py", "errors.py", "testing.py", "extra.py", "room/extra.py")
    modules = [module("x = 1\ny = 2\n", name) for name in names]
    assert numbers(count_code.count_lines(modules)) == [12]
    (count,) = count_code.count_root_modules(modules)
    assert [place.path for place in count.places] == ["extra.py"]


def test_a_function_of_sixty_lines_is_not_too_long() -> None:
    assert numbers(count_code.count_long_functions([module(long_function(60, "@cache"))])) == [0, 0]
    plain, _ = count_code.count_long_functions([module(long_function(61))])
    assert [place.what for place in plain.places] == ["work: 61 lines"]


@pytest.mark.parametrize(
    ("source", "functions", "annotations"),
    [
        ("def f(a: Any, *b: Any, c: dict[str, Any], **d: Any) -> Any: ...", 1, 5),
        ("def f(a: 'list[Any]', b: typing.Any) -> None: ...", 1, 2),
        ("def f(a: AnyStr, b) -> int: ...", 0, 0),
        ("async def f(a: Any) -> int: ...", 1, 1),
        ("def _f(a: Any) -> int: ...", 0, 0),
        ("class A:\n    def f(self, a: Any) -> int: ...", 1, 1),
        ("class _A:\n    def f(self, a: Any) -> int: ...", 0, 0),
        ("class A:\n    def __init__(self, a: Any) -> None: ...\n    def __call__(self) -> Any: ...", 2, 2),
        ("class A:\n    def __eq__(self, other: Any) -> bool: ...", 0, 0),
        ("def f() -> int:\n    def local(a: Any) -> Any: ...", 0, 0),
        ("if TYPE_CHECKING:\n    def f(a: Any) -> int: ...", 1, 1),
    ],
)
def test_any_in_public_signatures(source: str, functions: int, annotations: int) -> None:
    assert numbers(count_code.count_any([module(source)])) == [functions, annotations, 0]


SCHEME_TESTS = [
    'if key.scheme == "alimark":',
    "if scheme != 'alimark':",
    'if "alimark" == name:',
    'if content["scheme"] != "alimark":',
    'if key.scheme == "kgw":',
    'if key.scheme in ("kgw", "sir"):',
    'if key.scheme not in {"k-semstamp"}:',
    'if "exp" == key.scheme:',
    '    case "alimark":',
]
OTHER_LINES = [
    'if address.scheme in ("http", "https"):',
    "if key.scheme != self.scheme:",
    'scheme: str = "alimark"',
    'law == "exp"',
    'metadata.version("alimark")',
    'parser.add_argument("--scheme", default="alimark")',
]


@pytest.mark.parametrize("line", SCHEME_TESTS + OTHER_LINES)
def test_a_test_for_the_name_of_a_scheme(line: str) -> None:
    assert bool(count_code._SCHEME_LINE.search(line)) is (line in SCHEME_TESTS)


def test_tests_for_a_scheme_are_split_by_place() -> None:
    source = 'same = scheme == "alimark"\n'
    paths = ("core/schemes/registry.py", "lab/rivals/a.py", "core/keys/files.py", "core/keys/key.py", "cli/schemes.py")
    inside, elsewhere = count_code.count_scheme_tests([module(source, path) for path in paths])
    assert [place.path for place in inside.places] == list(paths[:3])
    assert [place.path for place in elsewhere.places] == list(paths[3:])


@pytest.mark.parametrize(
    ("source", "lines", "bindings", "parameters"),
    [
        ("one = 1", 1, 1, 0),
        ("one, found = 1, 2", 1, 2, 0),
        ("found: int = 1", 1, 1, 0),
        ("rest, made = 1, 2", 0, 1, 0),
        ("for said in range(3): pass", 1, 1, 0),
        ("x = [own for own in range(3)]", 1, 1, 0),
        ("with open('x') as found: pass", 0, 1, 0),
        ("if (found := 1): pass", 0, 1, 0),
        ("class A:\n    found: bool = True", 1, 0, 0),
        ("def f(one): return lambda made: made", 0, 0, 2),
        ("x.found = 1\none_more = 2\nprint(found == 3)", 0, 0, 0),
    ],
)
def test_bindings_of_vague_names(source: str, lines: int, bindings: int, parameters: int) -> None:
    assert numbers(count_code.count_vague_names([module(source)])) == [lines, bindings, parameters]


def test_the_command_prints_counts_places_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "a.py").write_text("def f() -> Any: ...\n", encoding="utf-8")
    assert count_code.main([str(tmp_path)]) == 0
    assert "1  Any in public signatures" in capsys.readouterr().out
    assert count_code.main([str(tmp_path), "-v"]) == 0
    assert "room/a.py:1: f: return" in capsys.readouterr().out
    assert count_code.main([str(tmp_path), "--json"]) == 0
    entry = json.loads(capsys.readouterr().out)["Any in public signatures"]
    assert entry == {"count": 1, "places": [{"path": "room/a.py", "line": 1, "what": "f: return"}]}


def test_a_tree_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        count_code.main([str(tmp_path / "none")])
    assert "is not a folder" in capsys.readouterr().err
