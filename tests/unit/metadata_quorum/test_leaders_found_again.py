"""A node without a leader, or with a silent one, asks others for it, and by its address."""

from dataclasses import replace

from quorumlog.invariants import some
from quorumlog.metadata_quorum.core import events
from quorumlog.metadata_quorum.core.messages import FetchRequest
from quorumlog.metadata_quorum.core.roles import Unattached
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.metadata_quorum.quorums import answered, fetch_response, sent
from tests.support.metadata_quorum.voters import directory_id, voter_set
from tests.unit.metadata_quorum.test_membership import follow, node


def test_a_node_without_voters_asks_addresses_for_the_leader() -> None:
    quorum = node(4, configured=(), bootstrap=2)
    assert isinstance(quorum.role, Unattached)
    under_way = some(quorum.role.fetch_id, "it asks at once")
    quorum.step(0, events.RequestFailed(request_id=under_way))
    destinations: list[int] = []
    for now_ms in range(0, 3000, 500):
        for fetch in sent(quorum.step(now_ms, events.Ticked()), FetchRequest):
            destinations.append(fetch.destination)
            quorum.step(now_ms, events.RequestFailed(request_id=fetch.request_id))
    assert {*destinations} == {-2, -3}
    [fetch] = sent(quorum.step(9000, events.Ticked()), FetchRequest)
    told = replace(fetch_response(3, leader=7), leader_address="host7:7")
    told = replace(told, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    [fetch] = sent(quorum.step(9000, answered(fetch, told)), FetchRequest)
    assert (quorum.leader_id, fetch.destination) == (7, 7)
    assert isinstance(fetch.request, FetchRequest)
    assert fetch.request.replica_directory_id == directory_id("4")


def test_a_follower_finds_its_leader_again_by_an_address() -> None:
    quorum = node(4, configured=(), bootstrap=1)
    follow(quorum, leader=7)
    orders = quorum.step(2000, events.Ticked())  # the leader was silent
    [fetch] = sent(orders, FetchRequest)
    assert fetch.destination == -2
    found = fetch_response(1, leader=7, high_watermark=0)
    [fetch] = sent(quorum.step(2000, answered(fetch, found)), FetchRequest)
    assert fetch.destination == 7


def test_a_leader_that_is_no_voter_here_is_asked_again_after_a_silence() -> None:
    quorum = node(4, voter_set(1, 2))
    follow(quorum, leader=7)
    told = replace(fetch_response(1, leader=7), error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    destinations: list[int] = []
    for now_ms in range(2000, 4000, 500):
        for fetch in sent(quorum.step(now_ms, events.Ticked()), FetchRequest):
            destinations.append(fetch.destination)
            quorum.step(now_ms, answered(fetch, told))
    assert {*destinations} == {1, 2, 7}
