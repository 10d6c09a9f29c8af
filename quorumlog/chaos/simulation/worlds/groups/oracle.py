"""The rules of a consumer group, checked from its members, over all brokers and crashes.

It records the assignments and acknowledgements that members received, and reads the committed
records of the offsets topic. It models the protocol and shares no code with the coordinator.
Sources: KIP-62, KAFKA-13614 (a member receives no assignment that could be lost), KAFKA-17507 (no
offset is shown before it is committed).
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from quorumlog.chaos.simulation.kernel.rules import Violation, check


class Membership(NamedTuple):
    """A place in a generation. `name`: the instance id of a static member, else the member id.

    A static member that restarts keeps its place: its new process has the same name.
    """

    name: str
    member_id: str
    generation_id: int

    def is_replaced_by(self, newer: "Membership") -> bool:
        """Return whether a newer process of a static member has the same place."""
        is_same_place = (self.name, self.generation_id) == (newer.name, newer.generation_id)
        return is_same_place and self.member_id != newer.member_id


class Position(NamedTuple):
    """A committed offset. `tag` is in its metadata, and in no other commit of the run."""

    offset: int
    tag: str


class Commit(NamedTuple):
    """A commit of some partitions by one member."""

    membership: Membership
    positions: Mapping[int, Position]


class _Acknowledged(NamedTuple):
    membership: Membership
    offset: int
    log_offset: int


class GroupOracle:
    """Records the assignments of members and their acknowledged commits, and checks them."""

    def __init__(self, find: Callable[[str], int | None]) -> None:
        """`find` returns the offset of the first committed record with a tag, or None."""
        self._find: Final = find
        self._acknowledged: Final[dict[int, list[_Acknowledged]]] = defaultdict(list)
        self._owners: Final[dict[int, dict[int, str]]] = defaultdict(dict)
        self._assignments: Final[dict[int, str]] = {}
        self._undecided: Final[set[str]] = set()  # tags of commits in transactions
        self._stored_at: Final[dict[int, int]] = {}  # generation -> the log offset of its record

    def assigned(self, membership: Membership, assignment: str, partitions: list[int]) -> None:
        """Record the partitions of a member. `assignment`: the tag of the leader's assignment."""
        generation_id = membership.generation_id
        known = self._assignments.setdefault(generation_id, assignment)
        rule = f"one-assignment: generation {generation_id} has {known} and {assignment}"
        check(known == assignment, rule)
        stored_at = self._find(assignment)
        rule = f"told-committed: generation {generation_id} {assignment} is not in the log"
        if stored_at is None:
            raise Violation(rule)
        self._stored_at[generation_id] = stored_at
        owners = self._owners[generation_id]
        for partition in partitions:
            owner = owners.setdefault(partition, membership.name)
            rule = f"one-owner: {owner} and {membership.name} own {partition} in {generation_id}"
            check(owner == membership.name, rule)
        for commits in self._acknowledged.values():
            for one in commits:
                self._check_order(one, generation_id)

    def began(self, commit: Commit) -> None:
        """Note that a commit counts only if its transaction is committed."""
        self._undecided.update(position.tag for position in commit.positions.values())

    def decided(self, commit: Commit) -> None:
        """Note that the transaction of a commit is committed."""
        self._undecided.difference_update(one.tag for one in commit.positions.values())

    def _check_shown(self, shown: Mapping[int, Position]) -> None:
        for partition, position in shown.items():
            rule = f"transaction-shown: {position} of {partition} is not of a committed one"
            check(position.tag not in self._undecided, rule)

    def acknowledge(self, commit: Commit) -> None:
        """Note that a commit was acknowledged."""
        for partition, position in commit.positions.items():
            log_offset = self._find(position.tag)
            if log_offset is None:
                raise Violation(f"acked-committed: {position} of {partition} is not in the log")
            acknowledged = _Acknowledged(commit.membership, position.offset, log_offset)
            self._acknowledged[partition].append(acknowledged)
            for generation_id in self._stored_at:
                self._check_order(acknowledged, generation_id)

    def _check_order(self, commit: _Acknowledged, generation_id: int) -> None:
        """Check that a commit comes before all newer generations in the log."""
        if commit.membership.generation_id < generation_id:
            is_before = commit.log_offset < self._stored_at[generation_id]
            check(is_before, f"old-generation: {commit} was taken after {generation_id} had begun")

    def fetched(self, reader: Membership, shown: Mapping[int, Position]) -> None:
        """Compare the offsets that a member fetched after its SyncGroup with the acknowledged ones.

        The coordinator that answered has the record of the member's generation, thus all commits
        of earlier generations, and of the process that had the member's place before. Other
        commits of the same generation may have come after the response.
        """
        self._check_shown(shown)
        for partition, position in shown.items():
            rule = f"fetched-committed: {position} of {partition} is not in the log"
            check(self._find(position.tag) is not None, rule)
        for partition, commits in self._acknowledged.items():
            before = [
                one.offset
                for one in commits
                if one.membership.generation_id < reader.generation_id
                or one.membership.is_replaced_by(reader)
            ]
            _check_reached(partition, max(before, default=-1), shown)

    def finish(self, shown: Mapping[int, Position]) -> None:
        """Compare the offsets of the last coordinator with all acknowledged commits."""
        self._check_shown(shown)
        for partition, commits in self._acknowledged.items():
            _check_reached(partition, max(one.offset for one in commits), shown)


def _check_reached(partition: int, acknowledged: int, shown: Mapping[int, Position]) -> None:
    offset = shown[partition].offset if partition in shown else -1
    rule = f"offset-lost: {offset} of {partition} is shown, {acknowledged} was acknowledged"
    check(offset >= acknowledged, rule)
