"""The rules of Ongaro and Ousterhout's paper, by section, in KRaft's pull-based words."""

import pytest

from quorumlog.chaos.mutants.quorum import QUORUMS
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import NOBODY, FetchRequest, VoteRequest
from quorumlog.metadata_quorum.core.roles import Candidate, Follower, Prospective, Unattached
from quorumlog.wire.codec.identifiers import BrokerId, Offset
from tests.support.metadata_quorum.quorums import (
    answered,
    asked,
    fetch_request,
    fetch_response,
    only,
    sent,
    started,
    vote_request,
    vote_response,
)
from tests.support.metadata_quorum.scripted_cluster import ScriptedCluster

FIGURE_8 = """
    start 5 / at 1000 / deliver / isolate 3 / isolate 4 / isolate 5 / append 1 x / deliver
    kill 1 / isolate 2 / join 3 / join 4 / join 5 / died 1 at 3 / died 1 at 4 / died 1 at 5
    at 1160 / deliver 5->3 / deliver 5->4 / deliver 3->5 / deliver 4->5 / deliver 5->3
    deliver 5->4 / deliver 3->5 / deliver 4->5 / isolate 5 / kill 5 / boot 1 / join 2
    died 1 at 2 / isolate 4 / limit 1 / hold 2 / hold 3 / at 2200 / deliver
"""


def run(script: str, cluster: ScriptedCluster) -> ScriptedCluster:
    for line in script.strip().splitlines():
        for command in line.split("/"):
            cluster.run(command.strip())
    return cluster


# --- 5.1: terms ---


@pytest.mark.parametrize("epoch", [5, 9])
def test_5_1_a_newer_term_in_a_request_is_taken_over(epoch: int) -> None:
    node = started(leader_epoch=4, leader_id=3)
    node.step(1, asked(vote_request(epoch=epoch)))
    assert node.state.leader_epoch == epoch
    assert isinstance(node.state.role, Unattached)


def test_5_1_a_newer_term_in_a_response_is_taken_over() -> None:
    node = started()
    vote = sent(node.step(1000, events.Ticked()), VoteRequest)[0]
    node.step(1001, answered(vote, vote_response(7, granted=False, leader=3)))
    assert (node.state.leader_epoch, node.state.leader_id) == (7, 3)


def test_5_1_a_leader_that_sees_a_newer_term_steps_down() -> None:
    cluster = run("start 3 / at 1000 / deliver", ScriptedCluster())
    leader = cluster.machines[1].quorum
    orders = leader.step(1100, asked(vote_request(epoch=2, log=(1, 1))))
    assert not leader.is_leader
    assert any(isinstance(order, effects.ResignLeadership) for order in orders)


def test_5_1_a_request_of_an_older_term_is_refused() -> None:
    node = started(leader_epoch=4)
    orders = node.step(1, asked(vote_request(epoch=3)))
    response = only(effects.SendResponse, orders).response
    assert (response.error_code.name, response.leader_epoch) == ("FENCED_LEADER_EPOCH", 4)


def test_5_1_a_response_of_an_older_term_is_dropped() -> None:
    node = started(leader_epoch=4, voted_id=1)
    late = events.ResponseReceived(
        request_id=1, source=BrokerId(2), response=vote_response(3, granted=True)
    )
    assert node.step(1, late) == []
    assert isinstance(node.state.role, Candidate)


# --- 5.2: leader election ---


def test_5_2_servers_start_without_a_leader() -> None:
    node = started()
    assert isinstance(node.state.role, Unattached)
    assert node.state.leader_id == NOBODY


def test_5_2_a_candidate_raises_its_term_and_votes_for_itself_durably_before_it_asks() -> None:
    node = started()
    pre_vote = sent(node.step(1000, events.Ticked()), VoteRequest)[0]
    orders = node.step(1001, answered(pre_vote, vote_response(0, granted=True)))
    assert isinstance(node.state.role, Candidate)
    assert isinstance(orders[0], effects.PersistElection)
    assert (orders[0].leader_epoch, orders[0].voted_id) == (1, 1)
    assert len(sent(orders[1:], VoteRequest)) == 2


@pytest.mark.parametrize(("voters", "needed"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (7, 3)])
def test_5_2_a_majority_elects(voters: int, needed: int) -> None:
    node = started(voters=tuple(range(1, voters + 1)))
    orders = node.step(1000, events.Ticked())
    for epoch in (0, 1):
        votes = sent(orders, VoteRequest)
        for count, vote in enumerate(votes[:needed], start=1):
            orders = node.step(1000, answered(vote, vote_response(epoch, granted=True)))
            assert node.is_leader == (epoch == 1 and count == needed)
    assert node.is_leader


def test_5_2_a_refusal_does_not_count() -> None:
    node = started(voters=(1, 2, 3, 4, 5))
    for vote in sent(node.step(1000, events.Ticked()), VoteRequest)[:2]:
        node.step(1000, answered(vote, vote_response(0, granted=False)))
    assert isinstance(node.state.role, Prospective)


def test_5_2_an_answer_counts_once() -> None:
    node = started(voters=(1, 2, 3, 4, 5))
    vote = sent(node.step(1000, events.Ticked()), VoteRequest)[0]
    for _ in range(3):
        node.step(1000, answered(vote, vote_response(0, granted=True)))
    assert isinstance(node.state.role, Prospective)


def test_5_2_at_most_one_vote_in_a_term_first_come_first_served() -> None:
    node = started()
    grants = []
    for candidate in (2, 3, 2):
        orders = node.step(1, asked(vote_request(candidate, epoch=1)))
        response = only(effects.SendResponse, orders).response
        grants.append(getattr(response, "vote_granted", None))
    assert grants == [True, False, True]


def test_5_2_a_vote_is_durable_before_the_answer_leaves() -> None:
    orders = started().step(1, asked(vote_request(epoch=1)))
    kinds = [type(order) for order in orders]
    assert kinds.index(effects.PersistElection) < kinds.index(effects.SendResponse)
    assert only(effects.PersistElection, orders).voted_id == 2  # one write for epoch and vote


def test_5_2_a_vote_survives_a_restart() -> None:
    node = started(leader_epoch=1, voted_id=3)
    response = only(effects.SendResponse, node.step(1, asked(vote_request(2, epoch=1)))).response
    assert not getattr(response, "vote_granted", None)


def test_5_2_a_candidate_that_finds_a_leader_follows_it() -> None:
    cluster = run("start 3 / at 1000", ScriptedCluster())
    node = cluster.machines[1].quorum
    node.step(1001, asked(fetch_request(epoch=3, offset=0, last_epoch=0)))
    vote = vote_response(3, granted=False, leader=2)
    node.step(1002, events.ResponseReceived(request_id=2, source=BrokerId(2), response=vote))
    assert isinstance(node.state.role, Follower)


def test_5_2_election_timeouts_are_random_in_t_to_2t() -> None:
    deadlines = set()
    for fraction in (0.0, 0.25, 0.999):
        node = started()
        timeouts = node.state.timeouts
        timeouts._random_fraction = lambda fraction=fraction: fraction  # type: ignore[misc]
        deadlines.add(node.state.new_election_deadline_ms())
    assert deadlines == {1000, 1250, 1999}


# --- 5.3: log replication ---


def test_5_3_logs_that_are_equal_at_one_point_are_equal_below() -> None:
    cluster = run(
        """start 3 / at 1000 / deliver / append 1 a b / deliver / isolate 1 / append 1 lost
        at 3001 / deliver / at 4201 / deliver / append 2 c / deliver / join 1
        at 5201 / deliver""",
        ScriptedCluster(),
    )
    logs = [machine.log for machine in cluster.machines.values()]
    assert logs[0] == logs[1] == logs[2]
    assert [record for _, record in logs[0] if record != "LeaderChange"] == ["a", "b", "c"]


def test_5_3_a_leader_never_changes_its_own_log() -> None:
    cluster = run("start 3 / at 1000 / deliver / append 1 a", ScriptedCluster())
    leader = cluster.machines[1].quorum
    later = fetch_request(epoch=1, offset=9, last_epoch=1)
    orders = leader.step(1001, asked(later))
    assert not any(isinstance(order, effects.TruncateLog) for order in orders)


def test_5_3_a_follower_learns_what_is_committed() -> None:
    cluster = run("start 3 / at 1000 / deliver / append 1 a / deliver", ScriptedCluster())
    assert {machine.quorum.state.log.high_watermark for machine in cluster.machines.values()} == {2}


def test_5_3_a_follower_does_not_commit_what_it_does_not_have() -> None:
    node = started(leader_epoch=1, leader_id=2)
    (fetch,) = sent(node.step(9, events.RequestFailed(request_id=1)), FetchRequest) or sent(
        node.step(30, events.Ticked()), FetchRequest
    )
    node.step(31, answered(fetch, fetch_response(1, high_watermark=40)))
    assert node.state.log.high_watermark == 0


# --- 5.4: safety ---


@pytest.mark.parametrize(
    ("log", "is_granted"),
    [
        ((3, 4), True),
        ((3, 5), True),
        ((4, 1), True),  # a newer last record wins, however short the log
        ((3, 3), False),
        ((2, 9), False),
    ],
)
def test_5_4_1_a_vote_needs_an_up_to_date_log(log: tuple[int, int], is_granted: bool) -> None:
    node = started(leader_epoch=4, log_end_offset=4, epoch_starts=((1, 0), (3, 2)))
    for is_pre_vote in (True, False):
        request = vote_request(epoch=5, log=log, pre=is_pre_vote)
        response = only(effects.SendResponse, node.step(1, asked(request))).response
        assert getattr(response, "vote_granted", None) == is_granted


def test_5_4_2_records_of_older_terms_are_not_committed_by_counting() -> None:
    cluster = run(FIGURE_8, ScriptedCluster())
    assert cluster.run("flush 3")
    committed = cluster.run("deliver 3->1")
    assert "records=[2,3)" in committed  # node 3 has acknowledged x: it is on 1, 2 and 3
    assert "AdvanceHighWatermark" not in committed


def test_5_4_2_the_mutant_that_counts_them_loses_a_committed_record() -> None:
    cluster = run(FIGURE_8, ScriptedCluster(QUORUMS["commits_older_epochs"].parts.quorum))
    cluster.run("flush 3")
    assert "AdvanceHighWatermark high_watermark=2" in cluster.run("deliver 3->1")
    ending = "hold 3/kill 1/isolate 2/join 4/join 5/flush 3/boot 5/at 4400/deliver"
    run(f"{ending} / at 6400 / deliver / at 8400 / deliver", cluster)
    assert "x" not in [record for _, record in cluster.machines[3].log]


# --- 5.5 and 5.6: crashes and timing ---


def test_5_5_requests_are_repeated_until_answered() -> None:
    node = started()
    votes = sent(node.step(1000, events.Ticked()), VoteRequest)
    node.step(1001, events.RequestFailed(request_id=votes[0].request_id))
    again = sent(node.step(1021, events.Ticked()), VoteRequest)
    assert [vote.destination for vote in again] == [votes[0].destination]


def test_5_5_requests_may_arrive_twice() -> None:
    cluster = run("start 3 / at 1000 / deliver / append 1 a / deliver", ScriptedCluster())
    leader = cluster.machines[1].quorum
    before = leader.state.log.high_watermark
    for _ in range(2):
        leader.step(1100, asked(fetch_request(epoch=1, offset=Offset(1), last_epoch=1)))
    assert leader.state.log.high_watermark == before
