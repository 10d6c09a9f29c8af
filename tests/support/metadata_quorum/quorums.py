"""Quorum nodes for tests, and the messages that they get."""

from typing import Any, TypeVar

from quorumlog.metadata_quorum.core.effects import Effect, SendRequest
from quorumlog.metadata_quorum.core.events import Event, RequestReceived, ResponseReceived, Started
from quorumlog.metadata_quorum.core.messages import (
    NOBODY,
    FetchRequest,
    FetchResponse,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.settings import QuorumSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset

T = TypeVar("T")


def started(
    node_id: int = 1,
    *,
    voters: tuple[int, ...] = (1, 2, 3),
    quorum_class: type[Quorum] = Quorum,
    **started_with: Any,
) -> Quorum:
    """A node that has just started at 0 ms; its election timeout is 1000 ms."""
    quorum = quorum_class(
        node_id=BrokerId(node_id),
        voters=tuple(map(BrokerId, voters)),
        settings=QuorumSettings(),
        random_fraction=lambda: 0.0,
    )
    if "log_end_offset" in started_with:
        started_with.setdefault("flushed_offset", started_with["log_end_offset"])
    quorum.step(0, Started(**started_with))
    return quorum


def only(kind: type[T], effects: list[Effect]) -> T:
    """The one effect of this kind."""
    (found,) = [effect for effect in effects if isinstance(effect, kind)]
    return found


def sent(effects: list[Effect], kind: type[Request]) -> list[SendRequest]:
    """The requests of one kind."""
    return [
        effect
        for effect in effects
        if isinstance(effect, SendRequest) and isinstance(effect.request, kind)
    ]


def asked(request: Request, request_id: int = 77) -> Event:
    """A request that arrives."""
    return RequestReceived(request_id=request_id, request=request)


def answered(to: SendRequest, response: Response, **records: Any) -> Event:
    """The answer to a request of ours."""
    return ResponseReceived(
        request_id=to.request_id, source=to.destination, response=response, **records
    )


def vote_request(
    candidate: int = 2,
    *,
    epoch: int,
    voter: int = 1,
    log: tuple[int, int] = (0, 0),
    pre: bool = False,
) -> VoteRequest:
    """`log`: (epoch of the last record, end)."""
    return VoteRequest(
        replica_id=BrokerId(candidate),
        replica_epoch=Epoch(epoch),
        voter_id=BrokerId(voter),
        last_offset_epoch=Epoch(log[0]),
        last_offset=Offset(log[1]),
        pre_vote=pre,
    )


def vote_response(
    epoch: int, *, granted: bool, leader: int = NOBODY, write_ms: int = 0
) -> VoteResponse:
    """An answer without error."""
    return VoteResponse(
        error_code=ErrorCode.NONE,
        leader_id=BrokerId(leader),
        leader_epoch=Epoch(epoch),
        vote_granted=granted,
        write_ms=write_ms,
    )


def fetch_request(
    replica: int = 2,
    *,
    epoch: int,
    offset: int,
    last_epoch: int,
    max_wait_ms: int = 500,
    **more: Any,
) -> FetchRequest:
    """A fetch."""
    return FetchRequest(
        replica_id=BrokerId(replica),
        current_leader_epoch=Epoch(epoch),
        fetch_offset=Offset(offset),
        last_fetched_epoch=Epoch(last_epoch),
        max_wait_ms=max_wait_ms,
        **more,
    )


def fetch_response(
    epoch: int, *, leader: int = 2, high_watermark: int = -1, **more: Any
) -> FetchResponse:
    """An answer without error."""
    return FetchResponse(
        error_code=more.pop("error_code", ErrorCode.NONE),
        leader_id=BrokerId(leader),
        leader_epoch=Epoch(epoch),
        high_watermark=Offset(high_watermark),
        **more,
    )
