"""A lazy registry: names of built-in objects and of those that installed packages add by entry points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Generic, TypeVar

from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
Product = TypeVar("Product")


@dataclass(frozen=True, slots=True)
class Plugin:
    """An entry of a registry, as `alimark plugins list` shows it.

    The package of a built-in object is "alimark" without a version. `problem` says why an object cannot be used.
    """

    kind: str
    name: str
    package: str
    version: str
    target: str
    problem: str = ""


class Registry(Generic[T]):
    """Objects by name, each imported when it is asked for the first time.

    Built-in objects are given as "module:attribute". Installed packages add more by entry points of the group `group`. These
    are read only when a name is not built in or when all names are listed, since reading them takes time; so no package can
    replace a built-in object. Errors about the object of a package are of the class `error` and name the package.

    Args:
        kind: What the objects are, for messages, such as "splitter".
        flaw: Says what is wrong with an object that a package adds, or returns "" where nothing is. By default every object
            that can be called is accepted.

    Example:
        >>> numbers = Registry("number", "example.numbers", {"pi": "math:pi"})
        >>> numbers.get("pi")
        3.141592653589793
        >>> numbers.register("two", 2)
        >>> numbers.names()
        ('pi', 'two')
        >>> numbers.get("three")
        Traceback (most recent call last):
        alimark.errors.AlimarkError: no number is named 'three'; known: pi, two
    """

    def __init__(
        self,
        kind: str,
        group: str,
        built_in: Mapping[str, str],
        *,
        error: type[AlimarkError] = AlimarkError,
        flaw: Callable[[object], str] | None = None,
    ) -> None:
        self.kind, self.group, self._error = kind, group, error
        self._flaw = flaw or _not_callable
        self._built_in = dict(built_in)
        self._objects: dict[str, T] = {}

    @cached_property
    def _entry_points(self) -> dict[str, EntryPoint]:
        """The entry points of all installed packages by name; raises an error where two packages use the same name."""
        entries: dict[str, EntryPoint] = {}
        for entry in self._installed():
            if conflict := self._conflict(entry, entries.setdefault(entry.name, entry)):
                raise self._error(conflict)
        return entries

    def _installed(self) -> list[EntryPoint]:
        """The entry points of all installed packages, in the order of the import path."""
        from importlib import metadata  # takes long to import, and is not needed for built-in objects

        # A package that is found twice on the path, as with an editable install, names the same object twice.
        distinct = {(entry.name, entry.value): entry for entry in reversed(metadata.entry_points(group=self.group))}
        return list(reversed(distinct.values()))

    def _conflict(self, entry: EntryPoint, first: EntryPoint) -> str:
        """Says that alimark itself, or another package, has the name of an entry point already; "" where none has."""
        if first is entry and entry.name not in self._built_in:
            return ""
        other = "alimark itself" if first is entry else f"the package {_package(first)}"
        return (
            f"two objects are registered as {self.kind} {entry.name!r}: one by the package {_package(entry)} and "
            f"one by {other}; uninstall one of them"
        )

    def names(self) -> tuple[str, ...]:
        """All names: those built in, those of installed packages, and those registered by the program."""
        return tuple(dict.fromkeys([*self._built_in, *sorted(self._entry_points), *self._objects]))

    def __contains__(self, name: object) -> bool:
        return name in self._built_in or name in self._objects or name in self._entry_points

    def register(self, name: str, item: T) -> None:
        """Adds an object for this process, under a name that is not taken."""
        if name in self:
            raise self._error(f"a {self.kind} named {name!r} exists already; choose another name")
        self._objects[name] = item

    def replace(self, name: str, item: T) -> None:
        """Adds an object for this process in place of one that was added before, as a notebook does that is run again."""
        if name in self._built_in or name not in self._objects:
            self.register(name, item)
        self._objects[name] = item

    def get(self, name: str) -> T:
        """The object of that name; raises an error where there is none, or its package cannot be loaded."""
        if name in self._objects:
            return self._objects[name]
        if name in self._built_in:
            module, _, attribute = self._built_in[name].partition(":")
            item: T = getattr(import_module(module), attribute)
        elif name in self._entry_points:
            item = self._loaded(self._entry_points[name])
        else:
            raise self._error(f"no {self.kind} is named {name!r}; known: {', '.join(self.names())}")
        self._objects[name] = item
        return item

    def make(self, name: str, build: Callable[[T], Product], attributes: Sequence[str] = ()) -> Product:
        """What `build` returns for the object of a name, such as the embedder of a function that returns one.

        An error names the package whose object failed, or built something without the `attributes` that are needed.
        """
        item = self.get(name)
        if name in self._built_in or name not in self._entry_points:
            return build(item)
        entry = self._entry_points[name]
        try:
            product = build(item)
        except AlimarkError:
            raise
        except Exception as error:  # whatever a foreign function raises
            raise self._fault(entry, f"failed ({type(error).__name__}: {error})") from error
        if missing := [attribute for attribute in attributes if not hasattr(product, attribute)]:
            kind = type(product).__name__
            raise self._fault(
                entry, f"cannot be used: it returned an object of the type {kind}, which has no {', '.join(missing)}"
            )
        return product

    def _fault(self, entry: EntryPoint, what: str) -> AlimarkError:
        return self._error(
            f"the {self.kind} {entry.name!r} of the package {_package(entry)} {what}; report this to its authors "
            "(docs/plugins.md says what they need), or uninstall it"
        )

    def plugins(self, *, built_in: bool = False) -> list[Plugin]:
        """Every object that installed packages add, loaded to see whether it can be used.

        With `built_in`, the objects of alimark itself come first; they are not loaded.
        """
        rows: list[Plugin] = []
        seen: dict[str, EntryPoint] = {}
        for entry in self._installed():
            problem = self._conflict(entry, seen.setdefault(entry.name, entry))
            if not problem:
                try:
                    self._loaded(entry)
                except AlimarkError as error:
                    problem = str(error)
            name, version = (entry.dist.name, entry.dist.version) if entry.dist is not None else ("", "")
            rows.append(Plugin(self.kind, entry.name, name, version, entry.value, problem))
        ours = self._built_in.items() if built_in else ()
        return [
            *(Plugin(self.kind, name, "alimark", "", target) for name, target in ours),
            *sorted(rows, key=lambda row: (row.name, row.package)),
        ]

    def _loaded(self, entry: EntryPoint) -> T:
        try:
            item: T = entry.load()
        except Exception as error:  # whatever a foreign module raises when it is imported
            raise self._fault(entry, f"cannot be loaded ({entry.value}: {type(error).__name__}: {error})") from error
        if flaw := self._flaw(item):
            raise self._fault(entry, f"cannot be used: {entry.value} {flaw}")
        return item


def _not_callable(item: object) -> str:
    return "" if callable(item) else f"is not a function but of the type {type(item).__name__}"


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value
