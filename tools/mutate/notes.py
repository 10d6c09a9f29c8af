"""The outcomes of earlier commands, and the mutants that were judged to be equivalent."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tools.mutate.mutant import Key, Mutant
from tools.mutate.runs import KILLED, Outcome

EQUIVALENTS: Final = Path("tests/data/equivalent_mutants.json")


@dataclass(frozen=True, slots=True)
class Equivalents:
    """The accepted mutants, by path, function and text: no test can find them."""

    reasons: Mapping[Key, str]

    def __contains__(self, mutant: Mutant) -> bool:
        return mutant.key in self.reasons

    def stale(self, path: str, mutants: Sequence[Mutant]) -> list[Key]:
        """Return the entries of a file that are none of its mutants any more."""
        known = {one.key for one in mutants}
        return [key for key in self.reasons if key[0] == path and key not in known]


def read_equivalents(file: Path) -> Equivalents:
    """Read the accepted mutants. Raises ValueError for an entry without a reason."""
    entries = json.loads(file.read_text()) if file.exists() else []
    for one in entries:
        if not one["reason"].strip():
            raise ValueError(f"{file}: {one['function']}: an equivalent mutant has a reason")
    return Equivalents({_key_of(one): one["reason"] for one in entries})


def _key_of(entry: Mapping[str, Any]) -> Key:
    words = (entry["path"], entry["function"], entry["before"], entry["after"])
    return (*words, entry.get("occurrence", 0))


class Notes:
    """The outcomes of earlier commands, one JSON line each.

    A killed mutant stays killed while its module has the same text. A survivor is tried again once
    the product or the tests have changed.
    """

    def __init__(self, file: Path, digest: str) -> None:
        self._file: Final = file
        self._digest: Final = digest
        self._known: dict[Key, dict[str, Any]] = {}
        for line in file.read_text().splitlines() if file.exists() else ():
            noted = json.loads(line)
            self._known[tuple(noted["key"])] = noted

    def find(self, mutant: Mutant) -> Outcome | None:
        """Return the outcome of a mutant that need not run again."""
        noted = self._known.get(mutant.key)
        if noted is None or noted["source"] != _digest_of(mutant.source):
            return None
        if noted["outcome"]["verdict"] != KILLED and noted["digest"] != self._digest:
            return None
        return Outcome(**noted["outcome"])

    def add(self, mutant: Mutant, outcome: Outcome) -> None:
        """Write down an outcome."""
        noted = {
            "key": mutant.key,
            "source": _digest_of(mutant.source),
            "digest": self._digest,
            "place": mutant.place,
            "operator": mutant.operator,
            "outcome": {**asdict(outcome), "tried": [*outcome.tried]},
        }
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as file:
            file.write(json.dumps(noted) + "\n")


def _digest_of(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:16]
