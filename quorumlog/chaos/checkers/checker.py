"""The protocol of a checker: a model that judges a history, in steps that any engine can run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from quorumlog.chaos.checkers.entries import Entries
from quorumlog.chaos.checkers.fault_bands import Band
from quorumlog.chaos.checkers.verdict import Partial, Verdict


class CheckKeys(Protocol):
    """Check some keys, from all entries of those keys."""

    def __call__(self, entries: Entries, *, final_reads_marked: bool) -> Partial:
        """Return what was found, which merges with what is found about other keys."""


class Conclude(Protocol):
    """Give the verdict, from what was found about all keys."""

    def __call__(
        self,
        partials: Sequence[Partial],
        bands: Sequence[Band],
        *,
        final_reads_marked: bool,
        cut_off: bool = False,
        ended: bool = True,
    ) -> Verdict:
        """Merge what was found, and judge.

        `cut_off`: the last line of the file is incomplete; `ended`: its end row was seen.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Checker:
    """One model of what a history may look like.

    explode: from a table of history.schema.OPERATIONS, cut between processes, to entries by key.
    """

    model: str
    text: str
    explode: Callable[[pa.Table], Entries]
    check_keys: CheckKeys
    conclude: Conclude
