"""Counted cases of a forwarder: a request and its response, without rules and under rules.

A case has a whole connection of a forwarder, without its two sockets. Each request is of the next
correlation id; each Fetch is of the next offset.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

from benchmarks.counted import STEPS_MAX, WARM_UP, Case, Nowhere, repeat
from quorumlog.chaos.faults.links import CLIENTS, Answer, Link, LinkRule, Observe
from quorumlog.chaos.network.answer_rules import AnswerBook
from quorumlog.chaos.network.forwarder import Connection, Forwarder
from quorumlog.chaos.network.link_state import LinkState
from quorumlog.wire.codec.message import Request, Response
from quorumlog.wire.codec.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from quorumlog.wire.codec.messages.metadata import MetadataResponse, MetadataResponseTopic
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader, encode_request, encode_response

_REQUESTS: Final = 16  # of a step
_CLIENT: Final = "bench"
_ERROR: Final = "NOT_LEADER_OR_FOLLOWER"
_TOPICS: Final = {"orders": b"o" * 16, "bills": b"b" * 16}
_VERSIONS: Final = {"Produce": 9, "Fetch": 13, "Metadata": 12}
_RULES: Final[dict[str, tuple[str, Answer | Observe | None]]] = {
    "no rule": ("Produce", None),
    "a rule of another API": ("Produce", Answer("Heartbeat", "NOT_COORDINATOR")),
    "a rule of another topic": ("Produce", Answer("Produce", _ERROR, topic="bills")),
    "an observed topic": ("Produce", Observe("Produce", topic="orders")),
    "a rule of a later call": (
        "Produce",
        Answer("Produce", _ERROR, topic="orders", on_call=1_000_000),
    ),
    "no rule ": ("Fetch", None),
    "a rule of another topic ": ("Fetch", Answer("Fetch", _ERROR, topic="bills")),
    "an observed topic ": ("Fetch", Observe("Fetch", topic="orders")),
}


def _produce() -> tuple[Request[Any], Response]:
    """Return a Produce with 1 KiB of records for one partition, and its response."""
    data = PartitionProduceData(index=0, records=bytes(1024))
    response = TopicProduceResponse(
        name="orders", partition_responses=[PartitionProduceResponse(index=0)]
    )
    return (
        ProduceRequest(
            acks=-1, topic_data=[TopicProduceData(name="orders", partition_data=[data])]
        ),
        ProduceResponse(responses=[response]),
    )


def _fetch(offset: int) -> tuple[Request[Any], Response]:
    """Return a full Fetch of one partition, and its response of 1 KiB."""
    at = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    data = PartitionData(partition_index=0, high_watermark=offset + 1, records=bytes(1024))
    topic_id = _TOPICS["orders"]
    return (
        FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            session_epoch=0,
            topics=[FetchTopic(topic_id=topic_id, partitions=[at])],
        ),
        FetchResponse(responses=[FetchableTopicResponse(topic_id=topic_id, partitions=[data])]),
    )


def _frames(api: str, number: int) -> tuple[bytes, bytes]:
    """Return a request and its response."""
    request, response = _produce() if api == "Produce" else _fetch(number)
    key, version = request.API_KEY, _VERSIONS[api]
    sent = encode_request(request, api_version=version, correlation_id=number, client_id=_CLIENT)
    header = RequestHeader(key, version, number, _CLIENT)
    return b"".join(sent), b"".join(encode_response(header, response))


def _known_topics(book: AnswerBook) -> None:
    topics = [MetadataResponseTopic(name=name, topic_id=at) for name, at in _TOPICS.items()]
    version = _VERSIONS["Metadata"]
    response = encode_response(
        RequestHeader(3, version, 1, _CLIENT), MetadataResponse(topics=topics)
    )
    book.topics.keep(version, b"".join(response)[4:])


def _ends(effect: Answer | Observe | None) -> Sequence[Any]:
    """Return the two ends of a connection, and the sockets that they write to."""
    book = AnswerBook()
    _known_topics(book)
    forth, back = LinkState(lambda: 0.5, book), LinkState(lambda: 0.5, book)
    if effect is not None:
        forth.impose(LinkRule("rule", (), effect))
    route = SimpleNamespace(link=Link(CLIENTS, "1", "kafka"))
    forwarder = SimpleNamespace(route=route, forth=forth, back=back, recorder=None)
    connection = Connection(cast(Forwarder, forwarder))
    client, broker = Nowhere(), Nowhere()
    lower, upper = connection.lower_end(), connection.upper_end()
    lower.connection_made(client)
    upper.connection_made(broker)
    return lower, upper, client, broker


async def _forward(api: str, effect: Answer | Observe | None, _: Path, steps: int) -> bool:
    lower, upper, client, broker = _ends(effect)
    frames = [_frames(api, number) for number in range(STEPS_MAX * _REQUESTS)]
    count = (WARM_UP + steps) * _REQUESTS

    async def forward(at: int) -> None:
        for request, response in frames[at * _REQUESTS : (at + 1) * _REQUESTS]:
            lower.data_received(request)
            upper.data_received(response)

    await repeat(forward, steps)
    sizes = [sum(map(len, side)) for side in zip(*frames[:count], strict=True)]
    return [broker.sent_bytes, client.sent_bytes] == sizes


CASES: Final = tuple(
    Case(
        name=f"forwarder: a {api} and its response, {name.strip()}",
        run=partial(_forward, api, effect),
        unit="request",
        per_step=_REQUESTS,
    )
    for name, (api, effect) in _RULES.items()
)
