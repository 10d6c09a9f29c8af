"""The voters of the quorum, and how they change with the log (KIP-853).

The last appended voter set is in force at once, committed or not. A truncation restores the set
before it; a snapshot contains the set at its end. The sources are Raft section 4.1 (one server at a
time) and KIP-853 (a voter is an id and a directory id).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from quorumlog.invariants import require
from quorumlog.wire.codec.identifiers import BrokerId, Offset

PORT_MAX: Final = 65_535
HOST_MAX: Final = 255
"""Characters: the longest DNS name. A Voters record with 32,768 could not be decoded."""
_PORT: Final = re.compile(r"[0-9]{1,5}")
_UUID: Final = re.compile(r"[A-Za-z0-9_-]{21}[AQgw]")  # 16 bytes in base64 for URLs


def is_address(text: str) -> bool:
    """Return whether a peer's text has the form host:port: no other text gets into a URL."""
    host, _, port = text.rpartition(":")
    is_plain = text.isascii() and text.isprintable() and not {*" /?#@\\"} & {*text}
    is_port = _PORT.fullmatch(port) is not None and 0 < int(port) <= PORT_MAX
    return 0 < len(host) <= HOST_MAX and is_plain and is_port


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """A voter: a node, one of its metadata directories, and its address.

    `directory_id`: a UUID as text, as in the directory's `meta.properties`; empty: unknown
    (kraft.version 0). `address`: `host:port` of its control listener; empty: unknown. A node of the
    same id with another directory is another replica, and not this voter.
    """

    voter_id: BrokerId
    directory_id: str = ""
    address: str = ""

    @property
    def is_well_formed(self) -> bool:
        """Whether directory id and address are present, and have the right form."""
        is_uuid = _UUID.fullmatch(self.directory_id) is not None and {*self.directory_id} != {"A"}
        return is_uuid and is_address(self.address)


@dataclass(frozen=True, slots=True)
class VoterSet:
    """Voters, sorted by id; their ids are unique. The empty set has no majority."""

    voters: tuple[Voter, ...]
    ids: tuple[BrokerId, ...] = field(init=False, compare=False, repr=False)  # in order

    def __post_init__(self) -> None:
        """Sort the voters. Raises ValueError if two have the same id."""
        voters = tuple(sorted(self.voters, key=lambda voter: voter.voter_id))
        ids = tuple(voter.voter_id for voter in voters)
        if len({*ids}) < len(ids):
            raise ValueError(f"a voter is there twice: {ids}")
        object.__setattr__(self, "voters", voters)
        object.__setattr__(self, "ids", ids)

    @classmethod
    def of_ids(cls, ids: Iterable[BrokerId]) -> "VoterSet":
        """Return voters with ids alone: those of kraft.version 0."""
        return cls(tuple(Voter(voter_id=voter_id) for voter_id in sorted({*ids})))

    def __str__(self) -> str:
        """Return the ids, for traces."""
        return ",".join(map(str, self.ids))

    @property
    def majority(self) -> int:
        """The number of voters in a majority."""
        return len(self.voters) // 2 + 1

    def get(self, voter_id: BrokerId) -> Voter | None:
        """Return the voter of this id; None: there is none."""
        return next((voter for voter in self.voters if voter.voter_id == voter_id), None)

    def has_key(self, voter_id: BrokerId, directory_id: str | None) -> bool:
        """Return whether this node, with this directory, is a voter."""
        voter = self.get(voter_id)
        return voter is not None and voter.directory_id == directory_id

    def with_voter(self, voter: Voter) -> "VoterSet":
        """Return the set with this voter added, or in the place of the voter of the same id."""
        return VoterSet((*self.without(voter.voter_id).voters, voter))

    def without(self, voter_id: BrokerId) -> "VoterSet":
        """Return the set without the voter of this id."""
        return VoterSet(tuple(one for one in self.voters if one.voter_id != voter_id))


History = tuple[tuple[Offset, VoterSet], ...]
"""(offset of the record, its voter set), oldest first."""


class VoterSets:
    """The voter sets in the log of one node, by the offsets of their records.

    If there is none, kraft.version is 0, and the configured voters are in force. A snapshot's set
    has the offset of the snapshot's last record.
    """

    def __init__(self, history: History = ()) -> None:
        self._history: list[tuple[Offset, VoterSet]] = []
        self.append(history)

    @property
    def last(self) -> VoterSet | None:
        """The set in force; None: kraft.version is 0."""
        return self._history[-1][1] if self._history else None

    @property
    def last_offset(self) -> Offset:
        """The offset of the record with the set in force; -1: there is none."""
        return self._history[-1][0] if self._history else Offset(-1)

    @property
    def history(self) -> History:
        """All sets in the log, oldest first."""
        return tuple(self._history)

    def at(self, end_offset: Offset) -> VoterSet | None:
        """Return the set in force at `end_offset`: the last set below it."""
        found: Final = [voters for offset, voters in self._history if offset < end_offset]
        return found[-1] if found else None

    def committed(self, high_watermark: Offset) -> list[VoterSet]:
        """Return all sets below the high watermark, oldest first."""
        return [voters for offset, voters in self._history if offset < high_watermark]

    def may_be_in_force(self, end_offset: Offset) -> list[VoterSet]:
        """Return the set in force at `end_offset`, then the sets at and above it."""
        later = [voters for offset, voters in self._history if offset >= end_offset]
        before = self.at(end_offset)
        return later if before is None else [before, *later]

    def append(self, history: Iterable[tuple[Offset, VoterSet]]) -> None:
        """Append the voter sets of new records."""
        for offset, voters in history:
            require(offset > self.last_offset, "voter sets are appended in the order of the log")
            self._history.append((offset, voters))

    def truncate(self, end_offset: Offset) -> None:
        """Drop the sets at and above `end_offset`: the set before is in force again."""
        self._history = [entry for entry in self._history if entry[0] < end_offset]

    def move_start(self, start_offset: Offset) -> None:
        """Drop the sets below `start_offset`, except the set in force there."""
        below = [entry for entry in self._history if entry[0] < start_offset]
        self._history = below[-1:] + self._history[len(below) :]

    def install(self, end_offset: Offset, voters: VoterSet | None) -> None:
        """Replace all sets by that of a snapshot that ends at `end_offset`."""
        self._history = [] if voters is None else [(Offset(end_offset - 1), voters)]
