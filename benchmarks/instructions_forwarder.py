"""Counted cases of a forwarder: a Produce and its response, without rules and under rules."""

from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.counted import STEPS_MAX, WARM_UP, Case, repeat
from quorumlog.chaos.faults.links import Answer, LinkRule, Observe
from quorumlog.chaos.network.answer_rules import AnswerBook
from quorumlog.chaos.network.exchange import Exchange
from quorumlog.chaos.network.link_state import LinkState
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from quorumlog.wire.codec.schemas import RequestHeader, encode_request, encode_response

_REQUESTS: Final = 16  # of a step
_VERSION: Final = 9
_CLIENT: Final = "bench"
_ERROR: Final = "NOT_LEADER_OR_FOLLOWER"
_RULES: Final[dict[str, Answer | Observe | None]] = {
    "no rule": None,
    "a rule of another API": Answer("Fetch", _ERROR, topic="orders"),
    "a rule of another topic": Answer("Produce", _ERROR, topic="bills"),
    "a rule of another partition": Answer("Produce", _ERROR, topic="orders", partition=7),
    "an observed topic": Observe("Produce", topic="orders"),
}


def _frames(number: int) -> tuple[bytes, bytes]:
    """Return a request with 1 KiB of records for one partition, and its response."""
    data = TopicProduceData(
        name="orders", partition_data=[PartitionProduceData(index=0, records=bytes(1024))]
    )
    request = encode_request(
        ProduceRequest(acks=-1, topic_data=[data]),
        api_version=_VERSION,
        correlation_id=number,
        client_id=_CLIENT,
    )
    response = encode_response(RequestHeader(0, _VERSION, number, _CLIENT), ProduceResponse())
    return b"".join(request), b"".join(response)


async def _forward(effect: Answer | Observe | None, _: Path, steps: int) -> bool:
    state = LinkState(lambda: 0.5, AnswerBook())
    if effect is not None:
        state.impose(LinkRule("rule", (), effect))
    exchange = Exchange("kafka", state)
    frames = [_frames(number) for number in range(STEPS_MAX * _REQUESTS)]
    passed = 0

    async def forward(at: int) -> None:
        nonlocal passed
        for request, response in frames[at * _REQUESTS : (at + 1) * _REQUESTS]:
            sent = exchange.shape_requests(exchange.requests.feed(request))
            received = exchange.shape_replies(exchange.replies.feed(response))
            passed += len(sent) + len(received)

    await repeat(forward, steps)
    return passed == 2 * (WARM_UP + steps) * _REQUESTS


CASES: Final = tuple(
    Case(
        name=f"forwarder: a Produce and its response, {name}",
        run=partial(_forward, effect),
        unit="request",
        per_step=_REQUESTS,
    )
    for name, effect in _RULES.items()
)
