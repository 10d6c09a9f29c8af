"""The voters by the records of a log, and the directories that the machines have.

It reads the records by itself: so a node that counts other voters than those of its log is found.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from quorumlog.chaos.simulation.kernel.rules import check
from quorumlog.chaos.simulation.worlds.entries import VOTERS, Entry
from quorumlog.metadata_quorum.core.voter_sets import Voter, VoterSet
from quorumlog.storage.io.checkpoints import uuid_to_text
from quorumlog.wire.codec.identifiers import BrokerId
from quorumlog.wire.codec.messages.voters_record import VotersRecord
from quorumlog.wire.codec.schemas import decode_message


class Key(NamedTuple):
    """A voter; without a directory, any that the machine has: kraft.version is 0."""

    node_id: int
    directory_id: str = ""


def directory_id(node_id: int, disk_number: int) -> str:
    """Return the id of the directory on the disk of this number that a machine has got."""
    return uuid_to_text((b"node %d disk %d" % (node_id, disk_number)).ljust(16, b"-"))


def voter_of(node_id: int, directory: str = "") -> Voter:
    """Return the voter that this machine is, with this directory."""
    return Voter(voter_id=BrokerId(node_id), directory_id=directory, address=f"node{node_id}:1")


def voter_set_of(node_ids: Iterable[int]) -> VoterSet:
    """Return configured voters, which have no directory ids."""
    return VoterSet(tuple(map(voter_of, node_ids)))


class VoterModel:
    """Who may vote and lead. `directories`: the one of each machine; none: they do not count.

    `new`: machines with an empty disk that have not noted yet that they may vote.
    """

    def __init__(self, voters: Iterable[int]) -> None:
        self.directories: dict[int, str] = {}
        self.new: Final[set[Key]] = set()
        self._configured: Final = frozenset(Key(voter) for voter in voters)

    def key_of(self, node_id: int) -> Key:
        """Return the present key of a machine: its node id and its directory."""
        return Key(node_id, self.directories.get(node_id, ""))

    def in_force(self, log: Sequence[Entry]) -> frozenset[Key]:
        """Return the voters in the last record of them; without one, the configured voters."""
        return self.said_by(log) or self._configured

    def said_by(self, log: Sequence[Entry]) -> frozenset[Key]:
        """Return the voters in the last record of them; none if there is no such record."""
        for entry in reversed(log):
            if is_voters(entry):
                return keys_in(entry)
        return frozenset()

    def is_voter(self, node_id: int, log: Sequence[Entry]) -> bool:
        """Return whether a machine is a voter, by this log."""
        return bool({Key(node_id), self.key_of(node_id)} & self.in_force(log))

    def intact(self, voters: frozenset[Key]) -> frozenset[Key]:
        """Return the voters whose disks have not been lost."""
        return frozenset(
            one for one in voters if one in {Key(one.node_id), self.key_of(one.node_id)}
        )

    def check_change(self, node_id: int, log: Sequence[Entry], entry: Entry) -> None:
        """Compare a record with the voters before it: one more that may vote, or one less."""
        before, after = self.in_force(log), keys_in(entry)
        if before is self._configured:
            is_same = {one.node_id for one in before} == {one.node_id for one in after}
            check(is_same, f"upgrade: {node_id} makes {_shown(before)} to {_shown(after)}")
        else:
            is_one = len(before ^ after) <= 1
            check(is_one, f"one-voter: {node_id} makes {_shown(before)} to {_shown(after)}")
            mute = (after - before) & self.new
            check(not mute, f"added-votes: {node_id} adds {_shown(mute)}, which may not vote yet")


def is_voters(entry: Entry) -> bool:
    """Return whether a record names the voters."""
    return entry.content.startswith(VOTERS)


def keys_in(entry: Entry) -> frozenset[Key]:
    """Return the voters that a record names."""
    record = decode_message(VotersRecord, 0, entry.content.removeprefix(VOTERS))
    return frozenset(
        Key(voter.voter_id, uuid_to_text(voter.voter_directory_id)) for voter in record.voters
    )


def majority_of(voters: frozenset[Key]) -> int:
    """Return how many voters decide."""
    return len(voters) // 2 + 1


def _shown(voters: Iterable[Key]) -> str:
    return ",".join(str(one.node_id) for one in sorted(voters))
