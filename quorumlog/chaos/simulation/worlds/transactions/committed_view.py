"""The records of a partition that `read_committed` may return, by its log alone (KIP-98).

It shares no code with the brokers: it reads the log from its beginning.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from quorumlog.chaos.simulation.worlds.entries import ABORTS, COMMITS, Entry


class Ended(NamedTuple):
    """Records that a marker has ended, by offset."""

    records: dict[int, bytes]
    commits: bool


class CommittedView:
    """The committed view of one partition. `visible`: the visible records, by offset.

    `begun`: the first record of each transaction; the oracle removes them.
    """

    def __init__(self) -> None:
        self.visible: Final[dict[int, bytes]] = {}
        self.end = 0  # of the committed records read so far
        self.begun: Final[list[bytes]] = []
        self._open: Final[dict[int, dict[int, bytes]]] = {}  # by producer id

    @property
    def open_records(self) -> dict[int, bytes]:
        """The records of open transactions."""
        return {at: value for records in self._open.values() for at, value in records.items()}

    @property
    def open_firsts(self) -> list[bytes]:
        """The first record of each open transaction."""
        return [next(iter(records.values())) for records in self._open.values()]

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the earliest open transaction, or the end."""
        return min((min(records) for records in self._open.values()), default=self.end)

    def go_on(self, committed: list[Entry]) -> Iterable[Ended]:
        """Read the newly committed records; yield the records that each marker ends."""
        while self.end < len(committed):
            offset, entry = self.end, committed[self.end]
            self.end += 1
            if entry.content.startswith((COMMITS, ABORTS)):
                records = self._open.pop(entry.producer_id, {})
                commits = entry.content.startswith(COMMITS)
                if commits:
                    self.visible.update(records)
                yield Ended(records, commits)
            elif entry.is_transactional:
                if entry.producer_id not in self._open:
                    self.begun.append(entry.content)
                self._open.setdefault(entry.producer_id, {})[offset] = entry.content
            else:
                self.visible[offset] = entry.content
