"""The protocol of a checker: a model that judges a history, in steps that any engine can run.

  explode    from operations to entries with a column `key`, of any set of whole processes;
  check      everything about some keys, from all entries of those keys;
  conclude   the verdict, from what was found about all keys.
A history may be cut by process before `explode`, and by `key` before `check`. If the checker has a
`Context`, it may be cut anywhere before `explode`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from quorumlog.chaos.checkers.fault_bands import Band
from quorumlog.chaos.checkers.verdict import Anomaly, Partial, Verdict
from quorumlog.chaos.history.schema import CUT_OFF, ENDED, FINAL_READS


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What must be known of the whole history; every part of it is checked with the same facts.

    final_reads_marked: the last reads are told from others; Jepsen does not tell them apart.
    cut_off: the last line of the file is incomplete. ended: its end row was seen.
    """

    final_reads_marked: bool = True
    cut_off: bool = False
    ended: bool = True


def facts_of(metadata: Mapping[bytes, bytes] | None) -> Facts:
    """Return the facts that the metadata of a history's table names."""
    known = metadata or {}
    return Facts(
        final_reads_marked=known.get(FINAL_READS, b"marked") == b"marked",
        cut_off=CUT_OFF in known,
        ended=ENDED in known,
    )


class Conclude(Protocol):
    """Give the verdict, from what was found about all keys."""

    def __call__(self, partials: Sequence[Partial], bands: Sequence[Band], facts: Facts) -> Verdict:
        """Merge what was found, and judge. `bands`: when each fault was active."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Lets a history be cut within a process, too.

    of: from any run of operations, those that change what later ones of their process mean.
    explode: the entries of any run of operations, given all such operations of its processes.
    """

    of: Callable[[pa.Table], pa.Table]
    explode: Callable[[pa.Table, pa.Table], pa.Table]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checker:
    """One model of what a history may look like.

    model: its name.
    text: what holds if the verdict is valid, in one line.
    anomalies: what it may find. Root causes come first: one often causes others after it.
    entries: the schema of what `explode` returns. It has a column `key` of strings.
    context: None if `explode` must see whole processes.
    """

    model: str
    text: str
    anomalies: tuple[Anomaly, ...]
    entries: pa.Schema
    explode: Callable[[pa.Table], pa.Table]
    check: Callable[[pa.Table, Facts], Partial]
    conclude: Conclude
    context: Context | None = None
