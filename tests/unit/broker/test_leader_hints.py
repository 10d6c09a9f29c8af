"""An answer that a partition has moved names its leader and the leader's address (KIP-951)."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from quorumlog.broker.fetching.core.fetch_spec import FetchSpec
from quorumlog.broker.handlers import fetch, produce
from quorumlog.broker.partitions.core.data_path import FetchedPartition, ProduceResult
from quorumlog.broker.responses.cluster_view import controller_for_clients, leader_hints
from quorumlog.metadata_quorum.image.model import ClusterImage, TopicImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, TopicPartition
from quorumlog.wire.codec.messages.fetch import FetchResponse
from quorumlog.wire.codec.messages.fetch import NodeEndpoint as FetchEndpoint
from quorumlog.wire.codec.messages.produce import NodeEndpoint, PartitionProduceResponse
from quorumlog.wire.codec.schemas import RequestHeader, decode_response, encode_response
from tests.support.broker.one_broker import AT, TOPIC_ID, fetch_of
from tests.support.broker.replicas import broker, image

LEADER, LEADER_EPOCH = 2, 7
HOST = replace(broker(BrokerId(LEADER)), host="two", port=9092, rack="r")
CONTEXT: Any = SimpleNamespace(
    broker_id=BrokerId(1),
    listener="PLAINTEXT",
    image=ClusterImage(
        brokers={HOST.broker_id: HOST, BrokerId(1): broker(BrokerId(1))},
        topics={
            AT.topic: TopicImage(
                name=AT.topic,
                topic_id=TOPIC_ID,
                partitions=(image(LEADER, LEADER_EPOCH, 9, (1, 2)),),
                configs={},
            )
        },
        topic_names={TOPIC_ID: AT.topic},
    ),
)
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


def produced(version: int, error_code: ErrorCode, at: TopicPartition = AT) -> tuple[Any, Any]:
    """Return the answer of the partition, and the endpoints of the whole answer."""
    answer = produce._Answer(CONTEXT, version)
    slot = PartitionProduceResponse(index=0)
    answer.take(at, slot, ProduceResult(error_code))
    return slot.current_leader, answer.finish().node_endpoints


def fetched(version: int, error_code: ErrorCode) -> tuple[Any, Any]:
    found = FetchedPartition(
        error_code, leader_id=BrokerId(LEADER), leader_epoch=Epoch(LEADER_EPOCH)
    )
    header = RequestHeader(FetchResponse.API_KEY, version, 7, None)
    spec: FetchSpec = fetch_of(0)
    spec.partitions = [replace(spec.partitions[0], topic_id=TOPIC_ID)]
    frame = b"".join(encode_response(header, fetch._response(CONTEXT, header, spec, [found])))
    _, response = decode_response(FetchResponse.API_KEY, version, frame[4:])
    assert isinstance(response, FetchResponse)
    return response.responses[0].partitions[0].current_leader, response.node_endpoints


def test_a_producer_is_sent_to_the_leader() -> None:
    leader, endpoints = produced(10, NOT_LEADER)
    assert (leader.leader_id, leader.leader_epoch) == (LEADER, LEADER_EPOCH)
    assert endpoints == [NodeEndpoint(node_id=LEADER, host="two", port=9092, rack="r")]


def test_a_consumer_is_sent_to_the_leader() -> None:
    leader, endpoints = fetched(16, NOT_LEADER)
    assert (leader.leader_id, leader.leader_epoch) == (LEADER, LEADER_EPOCH)
    assert endpoints == [FetchEndpoint(node_id=LEADER, host="two", port=9092, rack="r")]


@pytest.mark.parametrize("error_code", [ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE])
def test_nobody_is_sent_away_from_the_leader(error_code: ErrorCode) -> None:
    for leader, endpoints in (produced(10, error_code), fetched(16, error_code)):
        assert not leader
        assert not endpoints


def test_an_older_client_and_a_partition_without_metadata_get_no_leader() -> None:
    for leader, endpoints in (
        produced(9, NOT_LEADER),
        produced(10, NOT_LEADER, TopicPartition("u", 0)),
    ):
        assert not leader
        assert not endpoints
    assert not fetched(15, NOT_LEADER)[1]


@pytest.mark.parametrize(
    ("controller", "fenced", "named"),
    [
        (3, (), 3),
        (3, (3,), 2),  # the broker that answers
        (9, (), 2),  # the controller serves no clients
        (9, (2,), 1),
        (9, (1, 2), 3),
        (9, (1, 2, 3), -1),
    ],
)
def test_a_client_is_sent_to_the_controller_or_to_a_broker_that_serves(
    controller: int, fenced: tuple[int, ...], named: int
) -> None:
    ids = [BrokerId(one) for one in (3, 2, 1)]
    brokers = {one: broker(one, fenced=one in fenced) for one in ids}
    cluster = ClusterImage(brokers=brokers, controller_id=BrokerId(controller))
    context: Any = SimpleNamespace(broker_id=BrokerId(2), listener="PLAINTEXT", image=cluster)
    assert controller_for_clients(context) == named


def test_a_leader_without_the_listener_of_the_client_is_named_without_an_endpoint() -> None:
    beside = SimpleNamespace(**{**vars(CONTEXT), "listener": "EXTERNAL"})
    assert leader_hints(beside, [AT]) == []  # type: ignore[arg-type]
    assert [one.broker_id for one, _ in leader_hints(CONTEXT, [AT])] == [LEADER]
