"""A Python that finds only the declared dependencies: this directory stands on its PYTHONPATH.

Found are quorumlog, the standard library, and of the installed distributions those that
`[project] dependencies` of pyproject.toml names, with everything that they need themselves, and the
distributions in $QUORUMLOG_ALSO. The processes that it starts are the same: $QUORUMLOG_ABSENT has
the modules that are not found.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

_PROJECT = Path(__file__).parents[3] / "pyproject.toml"
_ABSENT = "QUORUMLOG_ABSENT"


def _needed(requirements: Iterable[str]) -> set[str]:
    """Return the canonical names of these distributions, and of all that they need."""
    from importlib.metadata import PackageNotFoundError, requires

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    found: set[str] = set()
    left = [(Requirement(text), "") for text in requirements]
    while left:
        one, extra = left.pop()
        name = canonicalize_name(one.name)
        if (one.marker and not one.marker.evaluate({"extra": extra})) or name in found:
            continue
        found.add(name)
        try:
            inner = [Requirement(text) for text in requires(name) or ()]
        except PackageNotFoundError:
            continue  # for another Python
        left += [(each, extra) for each in inner for extra in ("", *one.extras)]
    return found


class _Filter:
    """A finder that does not find these top-level modules."""

    def __init__(self, finder: Any, absent: frozenset[str]) -> None:
        self._finder, self._absent = finder, absent

    def __getattr__(self, name: str) -> object:
        return getattr(self._finder, name)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in self._absent:
            return None
        return cast(ModuleSpec | None, self._finder.find_spec(name, path, target))


def _absent() -> str:
    """Return the top-level modules that are not to be found, separated by spaces."""
    import tomllib
    from importlib.metadata import packages_distributions

    from packaging.utils import canonicalize_name

    declared = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["dependencies"]
    also = os.environ.get("QUORUMLOG_ALSO", "").split()
    there = {"quorumlog", *_needed([*declared, *also])}
    return " ".join(
        module
        for module, owners in packages_distributions().items()
        if there.isdisjoint(canonicalize_name(owner) for owner in owners)
    )


def _install() -> None:
    if _ABSENT not in os.environ:  # the processes that this one starts need not find it again
        os.environ[_ABSENT] = _absent()
    absent = frozenset(os.environ[_ABSENT].split())
    sys.meta_path[:] = [_Filter(finder, absent) for finder in sys.meta_path]
    for module in absent & sys.modules.keys():
        del sys.modules[module]


_install()
