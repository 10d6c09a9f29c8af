"""Each rule of the voters of whole nodes, with a history that breaks it."""

import struct
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import pytest

from quorumlog.chaos.node_simulation.voter_oracle import VoterOracle
from quorumlog.chaos.simulation.worlds.quorum.voter_model import directory_id, voter_of
from quorumlog.metadata_quorum.core.roles import Candidate, Follower, Leader, Resigned
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.metadata_quorum.log.voter_records import encode_voters
from quorumlog.wire.codec.records import Record, encode_batch, read_header

ROLES: Final = {role.__name__: role for role in (Leader, Follower, Candidate)}


class Log:
    """The metadata log of a node, in memory: one record in each batch."""

    def __init__(self, batches: Iterable[bytes] = ()) -> None:
        self.batches = [*batches]
        self.start_offset = 0

    @property
    def end_offset(self) -> int:
        return len(self.batches)

    def epoch_starts(self) -> tuple[tuple[int, int], ...]:
        starts: dict[int, int] = {}
        for offset, batch in enumerate(self.batches):
            starts.setdefault(read_header(batch).leader_epoch, offset)
        return tuple(starts.items())

    def read(self, offset: int, end_offset: int) -> bytes:
        return b"".join(self.batches[offset:end_offset])

    def append(self, epoch: int, key: bytes | None, value: bytes) -> None:
        offset = len(self.batches)
        record = Record(offset=offset, timestamp_ms=0, key=key, value=value)
        is_control = key is not None
        self.batches.append(
            encode_batch([record], base_offset=offset, leader_epoch=epoch, is_control=is_control)
        )


class Cluster:
    """Nodes 1 to 4, of which 1 to 3 are configured to vote; each looks at itself when it acts."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.oracle = VoterOracle((1, 2, 3), self.told.append)
        self.nodes = {node_id: self._node(node_id, Log()) for node_id in (1, 2, 3, 4)}
        for node_id in self.nodes:
            self.look(node_id)

    def _node(self, node_id: int, log: Log, disk: int = 1) -> Any:
        return SimpleNamespace(
            quorum=SimpleNamespace(
                settings=SimpleNamespace(directory_id=directory_id(node_id, disk)),
                _log=log,
                _quorum=SimpleNamespace(
                    state=SimpleNamespace(leader_epoch=0, role=Follower.__new__(Follower))
                ),
                _driver=SimpleNamespace(_controllership=SimpleNamespace(high_watermark=0)),
            )
        )

    def look(self, node_id: int) -> None:
        self.oracle.look(node_id, self.nodes[node_id])

    def log(self, node_id: int) -> Log:
        found: Log = self.nodes[node_id].quorum._log
        return found

    def appends(self, node_id: int, value: bytes = b"record") -> "Cluster":
        self.log(node_id).append(1, None, value)
        return self

    def resigns(self, node_id: int) -> "Cluster":
        self.nodes[node_id].quorum._quorum.state.role = Resigned.__new__(Resigned)
        return self

    def becomes(self, node_id: int, role: str, epoch: int) -> "Cluster":
        state = self.nodes[node_id].quorum._quorum.state
        state.role, state.leader_epoch = ROLES[role].__new__(ROLES[role]), epoch
        self.look(node_id)
        return self

    def leads(self, node_id: int, epoch: int, votes: tuple[int, ...]) -> "Cluster":
        def array(ids: tuple[int, ...]) -> bytes:
            return bytes([len(ids) + 1]) + b"".join(struct.pack(">ib", one, 0) for one in ids)

        value = struct.pack(">hi", 0, node_id) + array((1, 2, 3)) + array(votes) + b"\0"
        self.log(node_id).append(epoch, b"\0\0\0\2", value)
        self.becomes(node_id, "Leader", epoch)
        return self

    def changes(self, node_id: int, epoch: int, *voters: int, disk: int = 1) -> "Cluster":
        """Append a set of voters, of which those above 2 have this disk."""
        named = [voter_of(one, directory_id(one, disk if one > 2 else 1)) for one in voters]
        [(key, value)] = encode_voters(VoterSet(tuple(named)), sets_kraft_version=False)
        self.log(node_id).append(epoch, key, value)
        self.look(node_id)
        return self

    def copies(self, source: int, *followers: int) -> "Cluster":
        for follower in followers:
            self.log(follower).batches[:] = self.log(source).batches
            self.look(follower)
        return self

    def commits(self, node_id: int, end: int | None = None) -> "Cluster":
        controllership = self.nodes[node_id].quorum._driver._controllership
        controllership.high_watermark = self.log(node_id).end_offset if end is None else end
        self.look(node_id)
        return self

    def has_a_new_disk(self, node_id: int) -> "Cluster":
        self.nodes[node_id] = self._node(node_id, Log(), disk=2)
        self.look(node_id)
        return self

    def all_commit(self, source: int) -> "Cluster":
        self.copies(source, *(one for one in self.nodes if one != source))
        for node_id in (source, *self.nodes):
            self.commits(node_id)
        return self


@pytest.fixture
def cluster() -> Cluster:
    """Node 1 leads epoch 1, and has made the configured voters those of the log."""
    made = Cluster()
    made.leads(1, 1, votes=(1, 2))
    made.all_commit(1)
    made.changes(1, 1, 1, 2, 3)
    made.all_commit(1)
    assert made.told == []
    return made


def rules(cluster: Cluster) -> set[str]:
    return {text.partition(":")[0] for text in cluster.told}


def test_a_good_story_breaks_no_rule(cluster: Cluster) -> None:
    cluster.changes(1, 1, 1, 2, 3, 4)
    cluster.copies(1, 2, 4).commits(1)
    cluster.oracle.told("add_voter", 4)
    cluster.changes(1, 1, 2, 3, 4)  # it removes itself
    cluster.copies(1, 2, 3)
    cluster.resigns(1)
    cluster.commits(1)
    cluster.oracle.told("remove_voter", 1)
    cluster.becomes(2, "Candidate", 2)
    cluster.leads(2, 2, votes=(2, 3))
    cluster.copies(2, 3).commits(2)
    cluster.changes(2, 2, 2, 3)
    cluster.copies(2, 3).commits(2)
    cluster.has_a_new_disk(4)
    cluster.changes(2, 2, 1, 2, 3).all_commit(2)
    assert cluster.told == []
    assert cluster.oracle.not_settled() == ""


class Broken(NamedTuple):
    rule: str
    story: Callable[[Cluster], Cluster]
    good: Callable[[Cluster], Cluster] = lambda cluster: cluster  # what comes before, and is legal


BROKEN = {
    "a leader without the votes of a majority is not elected": Broken(
        "elected", lambda c: c.changes(1, 1, 1, 2, 3, 4).all_commit(1).leads(2, 2, votes=(2, 3))
    ),
    "the vote of a node with a new disk does not count": Broken(
        "elected", lambda c: c.has_a_new_disk(3).leads(2, 2, votes=(2, 3))
    ),
    "a leader lacks nothing that is committed": Broken(
        "leader-complete", lambda c: c.appends(1).copies(1, 2).commits(1).leads(3, 2, votes=(2, 3))
    ),
    "a commit takes a majority of the voters in force": Broken(
        "commit-majority", lambda c: c.changes(1, 1, 1, 2).copies(1, 3, 4).commits(1)
    ),
    "a leader that resigns as it commits is checked too": Broken(
        "commit-majority", lambda c: c.changes(1, 1, 2, 3).copies(1, 2).resigns(1).commits(1)
    ),
    "what a lost disk held counts, and what the new one holds does not": Broken(
        "commit-majority",
        lambda c: c.appends(1, b"another").copies(1, 3).commits(1),
        good=lambda c: c.appends(1).copies(1, 3).has_a_new_disk(3).commits(1),
    ),
    "a leader commits by a record of its own epoch": Broken(
        "commit-own-epoch",
        lambda c: c.appends(1).copies(1, 2).leads(2, 2, votes=(2, 3)).commits(2, 3),
    ),
    "one voter changes at a time": Broken("one-change", lambda c: c.changes(1, 1, 1, 4)),
    "a change waits for the commit of the last one": Broken(
        "one-change", lambda c: c.changes(1, 1, 1), good=lambda c: c.changes(1, 1, 1, 2)
    ),
    "a change waits for a commit of its epoch": Broken(
        "change-own-epoch", lambda c: c.leads(2, 2, votes=(2, 3)).changes(2, 2, 1, 2)
    ),
    "a node that was removed does not stand": Broken(
        "stands",
        lambda c: c.all_commit(1).becomes(3, "Candidate", 3),
        # It does not know that its removal is committed.
        good=lambda c: c.changes(1, 1, 1, 2).copies(1, 2, 3).becomes(3, "Candidate", 2),
    ),
    "a leader that was removed does not lead on": Broken(
        "removed-leads", lambda c: c.all_commit(1), good=lambda c: c.changes(1, 1, 2, 3)
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_told(name: str, cluster: Cluster) -> None:
    rule, story, good = BROKEN[name]
    good(cluster)
    assert cluster.told == []
    story(cluster)
    assert rules(cluster) == {rule}


def test_what_the_administrator_was_told_is_committed(cluster: Cluster) -> None:
    cluster.changes(1, 1, 1, 2)
    cluster.oracle.told("remove_voter", 3)
    assert rules(cluster) == {"acked-voters"}


def test_at_the_end_the_voters_are_there_and_know_all(cluster: Cluster) -> None:
    assert cluster.oracle.not_settled() == ""
    cluster.appends(1).copies(1, 2).commits(1)
    assert cluster.oracle.not_settled().startswith("caught-up")
    cluster.changes(1, 1, 1, 2).all_commit(1)
    assert cluster.oracle.not_settled().startswith("voters-expected")
    cluster.changes(1, 1, 1, 2, 3).all_commit(1)
    assert cluster.oracle.not_settled() == ""
    cluster.has_a_new_disk(3)
    assert cluster.oracle.not_settled().startswith("voters-expected")
