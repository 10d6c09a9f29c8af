"""KIP-595, the Raft protocol of the metadata quorum, by clause: where it differs from the paper."""

from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
)
from quorumlog.metadata_quorum.core.roles import Follower, Resigned
from quorumlog.wire.codec.identifiers import BrokerId, Epoch
from tests.support.metadata_quorum.quorums import asked, only, sent, started
from tests.support.metadata_quorum.scripted_cluster import ScriptedCluster


def cluster(*commands: str) -> ScriptedCluster:
    made = ScriptedCluster()
    for command in ("start 3 observers 1", "at 1000", "deliver", *commands):
        made.run(command)
    return made


def test_quorum_state_is_durable_before_a_leader_appends() -> None:
    made = ScriptedCluster()
    made.run("start 3")
    made.run("at 1000")
    lines = [line for line in made.run("deliver").splitlines() if line.startswith("1: ")]
    persisted = lines.index("1: PersistElection leader_epoch=1 leader_id=1 voted_id=1")
    appended = next(at for at, line in enumerate(lines) if "AppendLeaderChange" in line)
    assert persisted < appended


def test_a_leader_starts_with_a_leader_change_record_that_names_who_voted() -> None:
    made = ScriptedCluster()
    made.run("start 3")
    made.run("at 1000")
    assert "voters=1,2,3 granting_voters=1,2" in made.run("deliver")


def test_replication_is_pulled_and_the_fetch_offset_acknowledges() -> None:
    made = cluster()
    told = made.run("append 1 x")
    assert "->" not in told.replace("1: FetchResponse", "")  # the leader pushes nothing
    assert "AdvanceHighWatermark high_watermark=2" in made.run("deliver")


def test_a_voter_fetches_on_only_when_what_it_has_is_durable() -> None:
    made = cluster("hold 2", "hold 3", "append 1 x")
    assert "high_watermark=2" not in made.run("deliver")
    assert "2: -> 1 Fetch epoch=1 from=2@1" in made.run("flush 2")


def test_observers_replicate_what_is_committed_and_have_no_vote() -> None:
    made = cluster("append 1 x", "deliver", "at 1100", "deliver")  # it has asked around
    observer = made.machines[4].quorum
    assert isinstance(observer.state.role, Follower)
    assert observer.state.log.high_watermark == 2
    made.run("isolate 4")
    made.run("at 9000")
    assert isinstance(observer.state.role, Follower)
    assert observer.state.leader_epoch == 1


def test_begin_quorum_epoch_tells_a_voter_that_lost_track() -> None:
    node = started(leader_epoch=3)
    begin = BeginQuorumEpochRequest(leader_id=BrokerId(2), leader_epoch=Epoch(4))
    orders = node.step(1, asked(begin))
    assert (node.state.leader_id, node.state.leader_epoch) == (2, 4)
    assert effects.FollowLeader(leader_epoch=Epoch(4), leader_id=BrokerId(2)) in orders
    assert isinstance(orders[0], effects.PersistElection)
    assert len(sent(orders, FetchRequest)) == 1


def test_end_quorum_epoch_lets_the_best_follower_stand_at_once() -> None:
    made = cluster("hold 3", "append 1 x", "deliver")
    told = made.run("resign 1")
    assert "preferred_candidates=2,3" in told  # node 3 has acknowledged less
    made.run("deliver")
    assert made.machines[2].quorum.is_leader
    assert made.machines[2].quorum.state.leader_epoch == 2


def test_one_that_has_resigned_stays_so_until_it_hears_of_a_newer_epoch() -> None:
    made = cluster("isolate 1", "resign 1", "at 1999")
    assert isinstance(made.machines[1].quorum.state.role, Resigned)
    made.run("at 2000")
    assert made.machines[1].quorum.state.leader_epoch == 2


def test_end_quorum_epoch_from_another_than_the_leader_is_no_reason_to_stand() -> None:
    node = started(leader_epoch=4, leader_id=3)
    end = EndQuorumEpochRequest(
        leader_id=BrokerId(2), leader_epoch=Epoch(3), preferred_candidates=(BrokerId(1),)
    )
    response = only(effects.SendResponse, node.step(1, asked(end))).response
    assert response.error_code.name == "FENCED_LEADER_EPOCH"
    assert node.next_deadline_ms() == 2000


def test_the_high_watermark_of_a_new_leader_is_unknown_until_it_commits() -> None:
    made = cluster("append 1 x", "deliver", "isolate 1", "at 3001")
    for command in ("deliver", "at 4201"):
        made.run(command)
    elected = made.run("deliver")
    assert "high_watermark=-1 records=" in elected
    leader = made.machines[2].quorum
    assert leader.state.log.high_watermark == leader.state.log.end_offset


def test_a_node_that_learns_of_a_leader_asks_it_and_nobody_else() -> None:
    node = started(leader_epoch=4, leader_id=3)
    orders = node.step(600, events.RequestFailed(request_id=1))
    orders += node.step(620, events.Ticked())
    assert [fetch.destination for fetch in sent(orders, FetchRequest)] == [3]
