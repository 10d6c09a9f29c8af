"""Every pair of roles, within an epoch and to a newer one; written a second time, on purpose."""

from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import pytest

from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.core.log_outline import LogOutline
from quorumlog.metadata_quorum.core.membership import Membership
from quorumlog.metadata_quorum.core.messages import NOBODY
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.roles import (
    Ballot,
    Candidate,
    Follower,
    Leader,
    ParkedFetch,
    Prospective,
    Resigned,
    Role,
    Unattached,
)
from quorumlog.metadata_quorum.core.settings import QuorumSettings
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.storage.core.leader_epochs import EpochEntry, LeaderEpochs
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset

VOTERS = tuple(map(BrokerId, (1, 2, 3)))
OBSERVING = Membership(BrokerId(1), None, VoterSet.of_ids(VOTERS[1:]), LogOutline())
ROLES: dict[type[Role], Role] = {
    Unattached: Unattached(election_deadline_ms=1),
    Prospective: Prospective(election_deadline_ms=1, ballot=Ballot(granted=set())),
    Candidate: Candidate(election_deadline_ms=1, ballot=Ballot(granted=set())),
    Follower: Follower(fetch_deadline_ms=1),
    Leader: Leader(
        epoch_start_offset=Offset(0),
        granting_voters=(),
        followers={},
        begin_epoch_deadline_ms=1,
        check_quorum_deadline_ms=1,
    ),
    Resigned: Resigned(election_deadline_ms=1, preferred_candidates=(), end_epoch_due_ms={}),
}
LEGAL_WITHIN = {
    (Unattached, Unattached), (Unattached, Prospective), (Unattached, Follower),
    (Prospective, Unattached), (Prospective, Follower),
    (Candidate, Prospective), (Candidate, Follower), (Candidate, Leader),
    (Follower, Prospective),
    (Leader, Resigned),
}  # fmt: skip
LEGAL_TO_NEWER = {(Prospective, Candidate), *product(ROLES, (Unattached, Follower))}
OBSERVERS = {
    (source, target) for source in (Unattached, Follower) for target in (Unattached, Follower)
}


def quorum(node_id: int = 1) -> Quorum:
    made = Quorum(
        node_id=BrokerId(node_id),
        voters=VOTERS,
        settings=QuorumSettings(),
        random_fraction=lambda: 0.0,
    )
    made._state.leader_epoch = Epoch(4)
    return made


def test_all_roles_are_here() -> None:
    assert set(get_args(Role)) == set(ROLES)


@pytest.mark.parametrize("is_newer", [False, True], ids=["within", "to_newer"])
@pytest.mark.parametrize(("source", "target"), list(product(ROLES, repeat=2)))
def test_every_pair_of_roles(source: type[Role], target: type[Role], is_newer: bool) -> None:
    node = quorum()._state
    node.role = ROLES[source]
    is_legal = (source, target) in (LEGAL_TO_NEWER if is_newer else LEGAL_WITHIN)
    with nullcontext() if is_legal else pytest.raises(InvariantViolation, match="legal change"):
        node.become(ROLES[target], leader_epoch=Epoch(4 + is_newer))
    assert node.role is ROLES[target if is_legal else source]
    assert node.leader_epoch == 4 + (is_legal and is_newer)


@pytest.mark.parametrize(("source", "target"), list(product((Unattached, Follower), ROLES)))
def test_an_observer_only_follows(source: type[Role], target: type[Role]) -> None:
    node = quorum(node_id=9)._state
    node.role = ROLES[source]
    is_legal = (source, target) in OBSERVERS
    with nullcontext() if is_legal else pytest.raises(InvariantViolation, match="legal change"):
        node.become(ROLES[target], leader_epoch=Epoch(5))


def test_an_epoch_never_falls() -> None:
    with pytest.raises(InvariantViolation, match="an epoch never falls"):
        quorum()._state.become(ROLES[Unattached], leader_epoch=Epoch(3))


EARLIER = (4, 0, NOBODY, NOBODY)  # epoch, high watermark, leader and vote before the step
RECORD = LeaderEpochs((EpochEntry(Epoch(4), Offset(0)),))


@pytest.mark.parametrize(
    ("number", "role", "state", "before"),
    [
        (1, Unattached, {}, (5, 0, NOBODY, NOBODY)),
        (1, Unattached, {}, (4, 1, NOBODY, NOBODY)),
        (2, Unattached, {"high_watermark": 1}, EARLIER),
        (2, Unattached, {"flushed_offset": 1}, EARLIER),
        (4, Unattached, {"leader_id": 2}, EARLIER),
        (4, Prospective, {"leader_id": 1}, EARLIER),
        (4, Candidate, {}, EARLIER),
        (4, Candidate, {"voted_id": 1, "leader_id": 2}, EARLIER),
        (4, Follower, {}, EARLIER),
        (4, Follower, {"leader_id": 1}, EARLIER),
        (4, Leader, {"leader_id": 2}, EARLIER),
        (4, Resigned, {"leader_id": 2}, EARLIER),
        (5, Follower, {"leader_id": 2}, (4, 0, 3, NOBODY)),
        (5, Unattached, {"voted_id": 2}, (4, 0, NOBODY, 3)),
        (6, Leader, {"leader_id": 1}, EARLIER),
        (9, Unattached, {"leader_epoch": 3, "epochs": RECORD, "end_offset": 1,
                         "flushed_offset": 1}, (3, 0, NOBODY, NOBODY)),
        (10, Follower, {"leader_id": 2, "fetch_id": 7, "end_offset": 1}, EARLIER),
        (10, Prospective, {"end_offset": 1}, EARLIER),
        (11, Unattached, {"voted_id": 9, "members": OBSERVING}, EARLIER),
        (11, Prospective, {"members": OBSERVING}, EARLIER),
    ],
)  # fmt: skip
def test_each_invariant_speaks(
    number: int, role: type[Role], state: dict[str, Any], before: tuple[int, int, int, int]
) -> None:
    node = quorum()
    node._state.role = replace(ROLES[role])
    for name, value in state.items():
        owners = node._state, node._state.log, node._state.role
        setattr(next(owner for owner in owners if hasattr(owner, name)), name, value)
    with pytest.raises(InvariantViolation, match=rf"^{number}: "):
        node.check_invariants(before)


@pytest.mark.parametrize(
    ("number", "state"),
    [
        (7, {"high_watermark": Offset(1), "epoch_start_offset": Offset(1)}),
        (8, {"parked": {1: ParkedFetch(replica_id=BrokerId(2), fetch_offset=Offset(3),
                                       high_watermark=Offset(0), deadline_ms=1)}}),
    ],
)  # fmt: skip
def test_each_invariant_of_a_leader_speaks(number: int, state: dict[str, Any]) -> None:
    node = quorum()
    node._state.leader_id, node._state.log.epochs = BrokerId(1), RECORD
    node._state.log.end_offset = node._state.log.flushed_offset = Offset(2)
    node._state.role = replace(ROLES[Leader], **state)
    with pytest.raises(InvariantViolation, match=rf"^{number}: "):
        node.check_invariants((4, 0, 1, NOBODY))


def test_a_newer_epoch_forgets_leader_and_vote_and_the_same_one_keeps_them() -> None:
    node = quorum()._state
    node.become(ROLES[Unattached], voted_id=BrokerId(2))
    node.become(ROLES[Follower], leader_id=BrokerId(3))
    assert (node.leader_id, node.voted_id) == (3, 2)
    node.become(ROLES[Prospective])
    assert (node.leader_id, node.voted_id) == (3, 2)
    node.become(ROLES[Unattached], leader_epoch=Epoch(5))
    assert (node.leader_id, node.voted_id) == (NOBODY, NOBODY)
