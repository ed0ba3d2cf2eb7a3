"""A lazy registry: names of built-in objects and of those that installed packages add by entry points."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Generic, TypeVar

from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class Registry(Generic[T]):
    """Objects by name, each imported when it is asked for the first time.

    Built-in objects are given as "module:attribute". Installed packages add more by entry points of the group `group`. These
    are read only when a name is not built in or when all names are listed, since reading them takes time; so no package can
    replace a built-in object.

    Args:
        kind: What the objects are, for messages, such as "splitter".
        group: The entry-point group, such as "alimark.splitters".
        built_in: Names and where their objects are.
        error: The exception class that is raised.

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
        self, kind: str, group: str, built_in: Mapping[str, str], *, error: type[AlimarkError] = AlimarkError
    ) -> None:
        self.kind, self.group, self._error = kind, group, error
        self._built_in = dict(built_in)
        self._objects: dict[str, T] = {}

    @cached_property
    def _entry_points(self) -> dict[str, EntryPoint]:
        """The entry points of all installed packages by name; raises an error where two packages use the same name."""
        from importlib import metadata  # takes long to import, and is not needed for built-in objects

        entries: dict[str, EntryPoint] = {}
        for entry in metadata.entry_points(group=self.group):
            known = entries.get(entry.name)
            # A package that is found twice on the path, as with an editable install, names the same object twice.
            if known is not None and known.value == entry.value:
                continue
            if known is not None or entry.name in self._built_in:
                other = "alimark itself" if known is None else f"the package {_package(known)}"
                raise self._error(
                    f"two objects are registered as {self.kind} {entry.name!r}: one by the package {_package(entry)} and "
                    f"one by {other}; uninstall one of them"
                )
            entries[entry.name] = entry
        return entries

    def names(self) -> tuple[str, ...]:
        """All names: those built in, those of installed packages, and those registered by the program."""
        return tuple(dict.fromkeys([*self._built_in, *sorted(self._entry_points), *self._objects]))

    def __contains__(self, name: object) -> bool:
        return name in self._built_in or name in self._objects or name in self._entry_points

    def register(self, name: str, item: T) -> None:
        """Adds an object for this process.

        Raises:
            AlimarkError: The name is taken.
        """
        if name in self:
            raise self._error(f"a {self.kind} named {name!r} exists already; choose another name")
        self._objects[name] = item

    def get(self, name: str) -> T:
        """The object of that name.

        Raises:
            AlimarkError: No object has the name, or the package that adds it cannot be loaded.
        """
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

    def _loaded(self, entry: EntryPoint) -> T:
        try:
            item: T = entry.load()
        except Exception as error:  # whatever a foreign module raises when it is imported
            raise self._error(
                f"the {self.kind} {entry.name!r} of the package {_package(entry)} cannot be loaded ({entry.value}: "
                f"{type(error).__name__}: {error}); install a working version of the package, or uninstall it"
            ) from error
        return item


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value
