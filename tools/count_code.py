"""Counts what makes the source hard to read: long functions, `Any` in public signatures, special cases, vague names.

    python tools/count_code.py                      # of src/alimark
    python tools/count_code.py other/src/alimark    # of another source tree
    python tools/count_code.py -v                   # lists every place
    python tools/count_code.py --json               # for scripts

The source is parsed and never imported, so trees of any release can be compared.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

MAX_LINES = 60
ROOT_MODULES = frozenset({"__init__", "__main__", "errors", "testing"})
VAGUE_NAMES = frozenset({"one", "found", "own", "made", "said"})
SCHEMES = (
    "alimark",
    "semstamp",
    "k-semstamp",
    "simmark",
    "pmark",
    "samark",
    "kgw",
    "exp",
    "synthid",
    "sir",
)
JIT_DECORATORS = frozenset({"kernel", "jit", "njit", "vectorize", "guvectorize", "stencil", "cfunc"})
PUBLIC_DUNDERS = frozenset({"__init__", "__call__"})

# A line of the source that binds a vague name; the same expression serves `git grep -E`.
_VAGUE_LINE = re.compile(r"^\s*(one|found|own|made|said)\b[^=()]*= |for (one|found|own|made|said)\b")

_SCHEME = "|".join(map(re.escape, SCHEMES))
_SCHEME_LINE = re.compile(
    # Any comparison with AliMark's name, from either side, and a `case` of a match statement.
    rf"""[!=]=\s*["']alimark["']|["']alimark["']\s*[!=]=|\bcase\s+["'](?:{_SCHEME})["']"""
    # Other names, where what is compared is called `scheme`: `key.scheme == "kgw"`, `content["scheme"] in ("kgw", "sir")`.
    rf"""|\bscheme["'\])]*\s*(?:[!=]=|\bnot\s+in\b|\bin\b)\s*[\[({{]?\s*["'](?:{_SCHEME})["']"""
    rf"""|["'](?:{_SCHEME})["']\s*[!=]=\s*[\w.\[\]"']*\bscheme\b"""
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was counted: the file, relative to the tree, the line, and what stands there."""

    path: str
    line: int
    what: str


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed source file; `path` is relative to the tree."""

    path: PurePosixPath
    source: str
    tree: ast.Module

    def place(self, line: int, what: str) -> Place:
        return Place(str(self.path), line, what)


@dataclass(frozen=True, slots=True)
class Definition:
    """A function with its qualified name; `local` where it is defined inside another function."""

    name: str
    node: Function
    local: bool

    @property
    def lines(self) -> int:
        return (self.node.end_lineno or self.node.lineno) - self.node.lineno + 1


@dataclass(frozen=True, slots=True)
class Count:
    """A number with the name it is reported by, and the places that were counted, where there are any."""

    name: str
    number: int
    places: tuple[Place, ...] = ()


def read_modules(root: Path) -> list[Module]:
    """Parse every Python file below `root`, in the order of their paths."""
    modules = []
    for path in sorted(root.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        modules.append(Module(PurePosixPath(path.relative_to(root).as_posix()), source, ast.parse(source, str(path))))
    return modules


def definitions(tree: ast.AST, prefix: str = "", local: bool = False) -> Iterator[Definition]:
    """All functions and methods below a node, also those defined inside others."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield Definition(prefix + node.name, node, local)
            yield from definitions(node, f"{prefix}{node.name}.", True)
        elif isinstance(node, ast.ClassDef):
            yield from definitions(node, f"{prefix}{node.name}.", local)
        else:
            yield from definitions(node, prefix, local)


def is_kernel(function: Function) -> bool:
    """Whether a decorator compiles the function: `@kernel`, `@kernel(...)`, `@numba.njit`, `@triton.jit` and the like."""
    for decorator in function.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
        if name in JIT_DECORATORS:
            return True
    return False


def is_public_module(path: PurePosixPath) -> bool:
    """Whether no folder or file of the path begins with an underscore; `__init__.py` counts as its package."""
    return not any(part.startswith("_") for part in path.with_suffix("").parts if part != "__init__")


def is_public(definition: Definition) -> bool:
    """Whether a function can be called by users: not local, and no part of its name begins with an underscore.

    Of the methods with double underscores only `__init__` and `__call__` are public.
    """
    parts = [part for part in definition.name.split(".") if part not in PUBLIC_DUNDERS]
    return not definition.local and not any(part.startswith("_") for part in parts)


def mentions_any(annotation: ast.expr) -> bool:
    """Whether an annotation contains `Any` or `typing.Any`, also inside a quoted part."""
    for node in ast.walk(annotation):
        if (isinstance(node, ast.Name) and node.id == "Any") or (
            isinstance(node, ast.Attribute) and node.attr == "Any"
        ):
            return True
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"\bAny\b", node.value):
            return True
    return False


def any_annotations(function: Function) -> list[str]:
    """The names of the parameters annotated with `Any`, and "return" where the return type is."""
    given = function.args
    parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    parameters += [argument for argument in (given.vararg, given.kwarg) if argument]
    names = [argument.arg for argument in parameters if argument.annotation and mentions_any(argument.annotation)]
    return names + (["return"] if function.returns and mentions_any(function.returns) else [])


def count_lines(modules: Sequence[Module]) -> list[Count]:
    return [Count("lines of source", sum(len(module.source.splitlines()) for module in modules))]


def count_root_modules(modules: Sequence[Module]) -> list[Count]:
    extra = [
        module.place(1, module.path.stem)
        for module in modules
        if len(module.path.parts) == 1 and module.path.stem not in ROOT_MODULES
    ]
    return [_count("modules in the root", extra)]


def count_long_functions(modules: Sequence[Module]) -> list[Count]:
    """Functions over MAX_LINES lines, the signature and docstring included and decorators not; kernels apart."""
    plain: list[Place] = []
    kernels: list[Place] = []
    for module in modules:
        for definition in definitions(module.tree):
            if definition.lines > MAX_LINES:
                place = module.place(definition.node.lineno, f"{definition.name}: {definition.lines} lines")
                (kernels if is_kernel(definition.node) else plain).append(place)
    return [
        _count(f"functions over {MAX_LINES} lines", plain),
        _count(f"kernels over {MAX_LINES} lines", kernels),
    ]


def count_any(modules: Sequence[Module]) -> list[Count]:
    """Annotations with `Any` in signatures of public functions and methods; kernels apart."""
    functions, annotations, kernels = [], [], []
    for module in modules:
        if not is_public_module(module.path):
            continue
        for definition in definitions(module.tree):
            names = any_annotations(definition.node) if is_public(definition) else []
            places = [module.place(definition.node.lineno, f"{definition.name}: {name}") for name in names]
            if is_kernel(definition.node):
                kernels += places
            elif places:
                annotations += places
                functions.append(module.place(definition.node.lineno, definition.name))
    return [
        Count("public functions with Any in the signature", len(functions)),
        _count("Any in public signatures", annotations),
        _count("Any in signatures of public kernels", kernels),
    ]


def count_scheme_tests(modules: Sequence[Module]) -> list[Count]:
    """Lines that compare with a scheme's name, in the rooms that may (schemes and the key file) and elsewhere."""
    inside: list[Place] = []
    elsewhere: list[Place] = []
    for module in modules:
        allowed = (
            module.path.parts[:2] in (("core", "schemes"), ("lab", "rivals"))
            or str(module.path) == "core/keys/files.py"
        )
        (inside if allowed else elsewhere).extend(_matching_lines(module, _SCHEME_LINE))
    return [
        _count("tests for a scheme's name in schemes and keys/files.py", inside),
        _count("tests for a scheme's name elsewhere", elsewhere),
    ]


def count_vague_names(modules: Sequence[Module]) -> list[Count]:
    """Bindings of vague names: lines found by the expression, names found by parsing, and parameters apart."""
    lines = [place for module in modules for place in _matching_lines(module, _VAGUE_LINE)]
    bindings = [module.place(node.lineno, node.id) for module in modules for node in _vague_bindings(module.tree)]
    parameters = [
        module.place(node.lineno, node.arg)
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.arg) and node.arg in VAGUE_NAMES
    ]
    names = " / ".join(sorted(VAGUE_NAMES))
    return [
        _count(f"lines that bind {names}, by expression", lines),
        _count(f"bindings of {names}, by parsing", bindings),
        _count(f"parameters called {names}", parameters),
    ]


def count_all(root: Path) -> list[Count]:
    """All counts of a source tree, in the order of the report."""
    modules = read_modules(root)
    counters = (count_lines, count_root_modules, count_long_functions, count_any, count_scheme_tests, count_vague_names)
    return [count for counter in counters for count in counter(modules)]


def _count(name: str, places: Sequence[Place]) -> Count:
    return Count(name, len(places), tuple(places))


def _matching_lines(module: Module, pattern: re.Pattern[str]) -> Iterator[Place]:
    for number, line in enumerate(module.source.splitlines(), 1):
        if pattern.search(line):
            yield module.place(number, line.strip())


def _vague_bindings(tree: ast.AST) -> Iterator[ast.Name]:
    """Targets of assignments, loops, comprehensions, `with` and `:=`. Fields of a class are no variables."""
    fields = {
        id(statement.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name) or node.id not in VAGUE_NAMES:
            continue
        if isinstance(node.ctx, ast.Store) and id(node) not in fields:
            yield node


def _print(counts: Sequence[Count], verbose: bool) -> None:
    for count in counts:
        print(f"{count.number:>7,}  {count.name}")
        for place in count.places if verbose else ():
            print(f"         {place.path}:{place.line}: {place.what}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", nargs="?", type=Path, default=Path("src/alimark"), help="default: src/alimark")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("-v", "--verbose", action="store_true", help="list every place that was counted")
    options = parser.parse_args(arguments)
    if not options.tree.is_dir():
        parser.error(f"{options.tree} is not a folder; give the folder of a package")
    counts = count_all(options.tree)
    if options.json:
        entries = {count.name: {"count": count.number, "places": [asdict(p) for p in count.places]} for count in counts}
        print(json.dumps(entries, indent=2))
    else:
        _print(counts, options.verbose)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
