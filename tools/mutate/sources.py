"""The modules of the product whose seams are mutated, and the mutants that a command chooses."""

import random
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from tools.mutate.callees import Callees, callees_of
from tools.mutate.mutant import Mutant
from tools.mutate.operators import Objects, mutants_of, offsets_used

PACKAGES: Final = ("broker", "metadata_quorum", "storage", "client")
_CHANGED_FILE: Final = re.compile(r"\+\+\+ b/(.+)")
_CHANGED_LINES: Final = re.compile(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True)
class Sources:
    """The text of the product below `root`. packages: those that are mutated."""

    root: Path
    product: str = "quorumlog"
    packages: Sequence[str] = PACKAGES

    @cached_property
    def texts(self) -> dict[str, str]:
        """The text of each mutated module, by its path from the root."""
        found = {}
        for package in self.packages:
            for path in sorted((self.root / self.product / package).rglob("*.py")):
                if "invariants" in path.stem:  # a weaker check of ours cannot show
                    continue
                found[str(path.relative_to(self.root))] = path.read_text()
        return found

    @cached_property
    def _callees(self) -> Callees:
        return callees_of(path.read_text() for path in (self.root / self.product).rglob("*.py"))

    @cached_property
    def _objects(self) -> dict[str, Objects]:
        return {
            package: offsets_used(
                {path: text for path, text in self.texts.items() if self._package(path) == package}
            )
            for package in self.packages
        }

    def _package(self, path: str) -> str:
        return Path(path).parts[1]

    def mutants(self, path: str) -> list[Mutant]:
        """Return all mutants of a module."""
        return mutants_of(path, self.texts[path], self._callees, self._objects[self._package(path)])


def every(sources: Sources) -> Iterator[Mutant]:
    """Yield all mutants."""
    for path in sources.texts:
        yield from sources.mutants(path)


def sample(sources: Sources, count: int, seed: int) -> list[Mutant]:
    """Return `count` mutants that a seed draws, in the order of the text."""
    found = [*every(sources)]
    drawn = random.Random(seed).sample(range(len(found)), min(count, len(found)))  # noqa: S311
    return [found[index] for index in sorted(drawn)]


def since(sources: Sources, commit: str) -> list[Mutant]:
    """Return the mutants of the lines that differ from a commit; also of uncommitted lines."""
    command = ["git", "diff", "--unified=0", "--no-color", "--no-ext-diff", commit, "--"]
    diff = subprocess.run(  # noqa: S603 - our own command
        [*command, sources.product], cwd=sources.root, capture_output=True, text=True, check=True
    ).stdout
    lines = changed_lines(diff)
    return [
        mutant
        for path in sorted(lines.keys() & sources.texts.keys())
        for mutant in sources.mutants(path)
        if lines[path].intersection(range(mutant.start[0], mutant.end[0] + 1))
    ]


def changed_lines(diff: str) -> dict[str, set[int]]:
    """Return the numbers of new lines in a diff without context, by path."""
    found: dict[str, set[int]] = {}
    path = ""
    for line in diff.splitlines():
        if (file := _CHANGED_FILE.fullmatch(line)) is not None:
            path = file[1]
        elif (at := _CHANGED_LINES.match(line)) is not None:
            first, count = int(at[1]), int(at[2] or 1)
            found.setdefault(path, set()).update(range(first, first + count))
    return found
