"""Quorum nodes for tests, and the messages that they get."""

from typing import Any, TypeVar

from quorumlog.metadata_quorum.core.effects import (
    AppendLeaderChange,
    Effect,
    SendRequest,
    SendResponse,
)
from quorumlog.metadata_quorum.core.events import (
    Event,
    FetchedRecords,
    LogFlushed,
    RequestFailed,
    RequestReceived,
    ResponseReceived,
    Started,
    Ticked,
)
from quorumlog.metadata_quorum.core.messages import (
    NOBODY,
    BeginQuorumEpochRequest,
    DivergingEpoch,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.settings import QuorumSettings
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset

T = TypeVar("T")


def quorum_of(node_id: int = 1, voters: Any = (1, 2, 3), **given: Any) -> Quorum:
    """A node that has not started; its election timeout is 1000 ms.

    `voters`: ids, or a VoterSet.
    """
    quorum_class: type[Quorum] = given.pop("quorum_class", Quorum)
    return quorum_class(
        node_id=BrokerId(node_id),
        voters=voters if isinstance(voters, VoterSet) else tuple(map(BrokerId, voters)),
        settings=given.pop("settings", QuorumSettings()),
        random_fraction=lambda: 0.0,
        **given,
    )


def started(
    node_id: int = 1,
    *,
    voters: tuple[int, ...] = (1, 2, 3),
    quorum_class: type[Quorum] = Quorum,
    **started_with: Any,
) -> Quorum:
    """A node that has just started at 0 ms."""
    quorum = quorum_of(node_id, voters, quorum_class=quorum_class)
    if "log_end_offset" in started_with:
        started_with.setdefault("flushed_offset", started_with["log_end_offset"])
    quorum.step(0, Started(**started_with))
    return quorum


def elect(quorum: Quorum, now_ms: int = 1000) -> Quorum:
    """Let a node stand, and have the votes of just enough others, one after the other."""
    orders = tick(quorum, now_ms)
    while requests := sent(orders, VoteRequest):  # for pre-votes, then for votes
        for one in requests:
            assert isinstance(one.request, VoteRequest)
            granted = vote_response(one.request.replica_epoch, granted=True)
            orders = quorum.step(now_ms, answered(one, granted))
            if orders:
                break
    assert quorum.is_leader
    return quorum


def tick(quorum: Quorum, now_ms: int) -> list[Effect]:
    return quorum.step(now_ms, Ticked())


def flush(quorum: Quorum, now_ms: int = 1000) -> list[Effect]:
    """The whole log is durable."""
    return quorum.step(now_ms, LogFlushed(flushed_offset=quorum.state.log.end_offset))


def fail(quorum: Quorum, request_id: int | None, now_ms: int = 0) -> list[Effect]:
    """A request of the node's has no answer."""
    assert request_id is not None
    return quorum.step(now_ms, RequestFailed(request_id=request_id))


def reply(quorum: Quorum, request: Request, now_ms: int = 1) -> Any:
    """The response to a request that arrives."""
    return only(SendResponse, quorum.step(now_ms, asked(request))).response


def role_of(quorum: Quorum, kind: type[T]) -> T:
    """The role of a node, which is of this kind."""
    assert isinstance(quorum.state.role, kind)
    return quorum.state.role


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


def requested(effects: list[Effect], kind: type[T]) -> T:
    """The one request of this kind that is sent."""
    requests = [one.request for one in effects if isinstance(one, SendRequest)]
    (found,) = [one for one in requests if isinstance(one, kind)]
    return found


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
        replica_directory_id=None,
        voter_directory_id=None,
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
        leader_address="",
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


def begin(leader: int, epoch: int, **more: Any) -> BeginQuorumEpochRequest:
    """The call of a new leader."""
    return BeginQuorumEpochRequest(leader_id=BrokerId(leader), leader_epoch=Epoch(epoch), **more)


def end(leader: int, epoch: int, *preferred: int) -> EndQuorumEpochRequest:
    """The farewell of a leader."""
    return EndQuorumEpochRequest(
        leader_id=BrokerId(leader),
        leader_epoch=Epoch(epoch),
        preferred_candidates=tuple(map(BrokerId, preferred)),
    )


def records(base: int, end: int, *starts: tuple[int, int], **more: Any) -> FetchedRecords:
    """The outline of fetched records; `starts`: (epoch, its first offset)."""
    return FetchedRecords(
        base_offset=Offset(base),
        end_offset=Offset(end),
        epoch_starts=tuple((Epoch(epoch), Offset(offset)) for epoch, offset in starts),
        **{"voter_sets": (), **more},
    )


def diverging(epoch: int, end: int) -> DivergingEpoch:
    return DivergingEpoch(epoch=Epoch(epoch), end_offset=Offset(end))


def asked_in_vain(quorum: Quorum, times_ms: range, **answer: Any) -> set[int]:
    """Whom a node fetches from, while no fetch has an answer, or each has this one of epoch 1."""
    destinations = set()
    for now_ms in times_ms:
        for fetch in sent(tick(quorum, now_ms), FetchRequest):
            destinations.add(int(fetch.destination))
            if answer:
                quorum.step(now_ms, answered(fetch, fetch_response(1, **answer)))
            else:
                fail(quorum, fetch.request_id, now_ms)
    return destinations


def leader_change(epoch: int, base_offset: int) -> AppendLeaderChange:
    """The order to append the record of a new leader, by the votes of 1 and 2."""
    voters = (BrokerId(1), BrokerId(2))
    return AppendLeaderChange(
        leader_epoch=Epoch(epoch),
        base_offset=Offset(base_offset),
        leader_id=BrokerId(1),
        voters=voters,
        granting_voters=voters,
    )
