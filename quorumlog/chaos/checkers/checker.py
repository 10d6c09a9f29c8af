"""The protocol of a checker: a model that judges a history, in steps that any engine can run.

  explode    from operations to entries with a column `key`, of any set of whole processes;
  check      everything about some keys, from all entries of those keys;
  conclude   the verdict, from what was found about all keys.
A history may be cut by process before `explode`, and by `key` before `check`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from quorumlog.chaos.checkers.fault_bands import Band
from quorumlog.chaos.checkers.verdict import Anomaly, Partial, Verdict
from quorumlog.chaos.history.schema import CUT_OFF, DENSE, ENDED, FINAL_READS


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What must be known of the whole history; every part of it is checked with the same facts.

    final_reads_marked: the last reads are told from others; Jepsen does not tell them apart.
    cut_off: the last line of the file is incomplete.
    ended: the end row was seen, or the format has none.
    dense: the workload leaves no offset unused (no transactions, no compaction).
    """

    final_reads_marked: bool = True
    cut_off: bool = False
    ended: bool = True
    dense: bool = False


def facts_of(metadata: Mapping[bytes, bytes] | None) -> Facts:
    """Return the facts that the metadata of a history's table names."""
    known = metadata or {}
    return Facts(
        final_reads_marked=known.get(FINAL_READS, b"marked") == b"marked",
        cut_off=CUT_OFF in known,
        ended=ENDED in known,
        dense=DENSE in known,
    )


class Conclude(Protocol):
    """Give the verdict, from what was found about all keys."""

    def __call__(self, partials: Sequence[Partial], bands: Sequence[Band], facts: Facts) -> Verdict:
        """Merge what was found, and judge. `bands`: when each fault was active."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checker:
    """One model of what a history may look like.

    model: its name.
    text: what holds if the verdict is valid, in one line.
    anomalies: what it may find. Root causes come first: one often causes others after it.
    operations: every `f` that it judges; a history with another one is refused.
    micros: of its transactions (f = "txn"), every micro-operation.
    entries: the schema of what `explode` returns. It has a column `key` of strings.
    """

    model: str
    text: str
    anomalies: tuple[Anomaly, ...]
    operations: frozenset[str]
    entries: pa.Schema
    explode: Callable[[pa.Table], pa.Table]
    check: Callable[[pa.Table, Facts], Partial]
    conclude: Conclude
    micros: frozenset[str] = frozenset()
