"""The protocol of a checker: a model that judges a history, in steps that any engine can run.

  explode    from operations to entries with a column `key`, of any set of whole processes;
  check      everything about some keys, from all entries of those keys;
  conclude   the verdict, from what was found about all keys.
A history may be cut by process before `explode`, and by `key` before `check`. A checker that can
take a history apart in runs, wherever it is cut, has `runs`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from quorumlog.chaos.checkers.fault_bands import Band
from quorumlog.chaos.checkers.verdict import Anomaly, Partial, Verdict
from quorumlog.chaos.history.schema import CUT_OFF, DENSE, ENDED, FINAL_READS

SHARED: Final = -1  # the position of an entry that all ranges must have: see Ranges
APART: Final = -2  # of one that no range needs


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
class Runs:
    """How a checker takes apart a run of operations: no process must be whole in it.

    context: of a run, the few operations that must be known to take apart the others; of contexts
        that were put together, the same of all their runs.
    explode: from a run, and the context of the whole history, to entries.
    explode_context: the entries of what spans the runs.
    """

    context: Callable[[pa.Table], pa.Table]
    explode: Callable[[pa.Table, pa.Table], pa.Table]
    explode_context: Callable[[pa.Table], pa.Table]


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a range says nothing, so that its key must be checked as a whole."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """How a checker proves a key clean from ranges of its entries, without the whole key.

    positions: of each entry of a table, where it lies in its key: from 0 on, or SHARED (each range
        has it), or APART (no range has it: it is checked with the other keys).
    examine: a range, and all that is shared, to evidence, which can be pickled, or a Doubt.
    stitch: from the evidence of all ranges, in order, to what `check` finds in the key; None: the
        key must be checked.
    """

    positions: Callable[[pa.Table], npt.NDArray[np.int64]]
    examine: Callable[[pa.Table, Facts], Any]
    stitch: Callable[[Sequence[Any], Facts], Partial | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checker:
    """One model of what a history may look like.

    model: its name.
    text: what holds if the verdict is valid, in one line.
    anomalies: what it may find. Root causes come first: one often causes others after it.
    operations: every `f` that it judges; a history with another one is refused.
    micros: of its transactions (f = "txn"), every micro-operation.
    entries: the schema of what `explode` returns. It has a column `key` of strings.
    runs: how it takes runs apart; None: only whole processes.
    ranges: how it proves a large key clean in ranges; None: a key is checked as a whole.
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
    runs: Runs | None = None
    ranges: Ranges | None = None
