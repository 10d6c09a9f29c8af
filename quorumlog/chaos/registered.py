"""Looks up a workload, a fault, a driver, a checker, a world or a mutant by its name.

Other packages add parts by entry points, which their metadata declares. Nothing of them is imported
before a name is looked up that the lab itself does not have, or all parts are listed.
"""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class NotRegistered(ValueError):
    """No object has this name. `hint`: the likely name, and all names."""

    def __init__(self, error: str, suggestion: str, known: str) -> None:
        super().__init__(f"{error}{f' - {suggestion}' if suggestion else ''}; {known}")
        self.error: Final = error
        self.hint: Final = f"{suggestion} {known}".strip()


class Listed(NamedTuple, Generic[T]):
    """A part of another package in a list. `part`: None if it cannot be used, for `why_not`."""

    origin: str
    part: T | None
    why_not: str = ""


class AddedParts(Generic[T]):
    """The parts of one kind that other packages add, by the names of their entry points.

    `groups`: of the entry points, such as `quorumlog.faults`. `read` returns the part that an
    imported object is, and raises ValueError with the reason if it is none; it gets the name.
    `noun`: the kind, in errors. `own`: the names that the lab has itself; no package replaces them.
    """

    def __init__(
        self, noun: str, own: Mapping[str, object], read: Callable[[str, object], T], *groups: str
    ) -> None:
        self._groups: Final = groups
        self._noun: Final = noun
        self._own: Final = own
        self._read: Final = read
        self._parts: Final[dict[str, T]] = {}

    @cached_property
    def _found(self) -> "Mapping[str, list[EntryPoint]]":
        from importlib.metadata import entry_points  # 20 ms, and most runs need no added part

        found: dict[str, list[EntryPoint]] = {}
        for group in self._groups:
            for entry in entry_points(group=group):
                found.setdefault(entry.name, []).append(entry)
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all entry points; nothing of them is imported."""
        return tuple(sorted(self._found))

    def find(self, name: str) -> T | None:
        """Return the part of this name; None: no package has it, or the lab itself has it.

        Raises ValueError with the package and the reason if the part cannot be used.
        """
        if name in self._own or name not in self._found:
            return None
        return self._load(name)

    def listed(self) -> dict[str, Listed[T]]:
        """Return every part, by name; of a part that cannot be used, the reason."""
        parts: dict[str, Listed[T]] = {}
        for name in self.names:
            origin = ", ".join(map(_origin, self._found[name]))
            try:
                parts[name] = Listed(origin, self._load(name))
            except ValueError as error:
                parts[name] = Listed(origin, None, str(error))
        return parts

    def _load(self, name: str) -> T:
        if name not in self._parts:
            self._parts[name] = self._imported(name, self._found[name])
        return self._parts[name]

    def _imported(self, name: str, entries: "list[EntryPoint]") -> T:
        if name in self._own:
            raise ValueError(
                f"{_origin(entries[0])} adds a {self._noun} {name!r}, which quorumlog has itself: "
                f"rename its entry point"
            )
        if len(entries) > 1:
            origins = " and ".join(sorted(map(_origin, entries)))
            raise ValueError(f"{origins} add a {self._noun} of the same name {name!r}: remove one")
        [entry] = entries
        try:
            return self._read(name, entry.load())
        except Exception as error:  # whatever an import of a user's module raises
            said = (
                str(error)
                if type(error) in {ValueError, TypeError}
                else f"{type(error).__name__}: {error}"
            )
            raise ValueError(
                f"{self._noun} {name} of {_origin(entry)} ({entry.value}): {said}"
            ) from error


def _origin(entry: "EntryPoint") -> str:
    """Return the package of an entry point, with its version."""
    return "another package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def registered(
    kinds: Mapping[str, T], name: str, noun: str, added: AddedParts[T] | None = None
) -> T:
    """Return the object of this name: of `kinds`, or of a package that adds it.

    Raises NotRegistered with the existing names.
    """
    if name in kinds:
        return kinds[name]
    if added is not None and (part := added.find(name)) is not None:
        return part
    names = [*kinds, *(added.names if added is not None else ())]
    like = "".join(f"did you mean {like}?" for like in get_close_matches(name, names, n=1))
    known = f"choose from {', '.join(names)}"
    raise NotRegistered(f"no {noun} is called {name!r}", like, known)
