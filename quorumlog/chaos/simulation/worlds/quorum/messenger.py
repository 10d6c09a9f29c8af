"""Requests and responses between simulated nodes, as HTTP over TCP carries them.

A process that died refuses at once. A machine without power, or a cut link, is silent until the
request times out. The oracle sees every message that is sent.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from quorumlog.chaos.simulation.kernel.network import Network
from quorumlog.chaos.simulation.kernel.rules import check
from quorumlog.chaos.simulation.kernel.timeline import Timeline
from quorumlog.chaos.simulation.worlds.quorum.oracle import Oracle
from quorumlog.metadata_quorum.core.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)
from quorumlog.wire.codec.error_codes import ErrorCode

if TYPE_CHECKING:
    from quorumlog.chaos.simulation.worlds.quorum.node import QuorumNode

Outcome = tuple[Response, bytes | None] | None
"""A response and the records beside it; None: there is no response."""


class Reply:
    """An `Answer` of a driver: it calls one of two functions."""

    def __init__(
        self, answered: Callable[[Any], None], refused: Callable[[], None] = lambda: None
    ) -> None:
        self._answered: Final = answered
        self._refused: Final = refused
        self._is_done = False

    def done(self) -> bool:
        """Return whether there is an answer already; no caller gives up."""
        return self._is_done

    def set_result(self, result: Any, /) -> None:
        """Set the answer."""
        self._is_done = True
        self._answered(result)

    def set_exception(self, _: Exception, /) -> None:
        """Set the reason for having no answer."""
        self._is_done = True
        self._refused()


class Call:
    """A request of `node`: `done` gets one outcome, unless the process ends before."""

    def __init__(
        self, node: "QuorumNode", request: Request, done: Callable[[Outcome], None]
    ) -> None:
        self.node: Final = node
        self.request: Final = request
        self._incarnation: Final = node.machine.incarnation
        self._done: Callable[[Outcome], None] | None = done

    def end(self, outcome: Outcome) -> None:
        """Return an outcome to the process: the first counts."""
        machine, done = self.node.machine, self._done
        if done is not None and machine.is_up and machine.incarnation == self._incarnation:
            self._done = None
            self.node.call(done, outcome)


class Messenger:
    """Carries messages between `nodes`, which the world fills."""

    def __init__(self, network: Network, timeline: Timeline, oracle: Oracle) -> None:
        self.nodes: Mapping[int, QuorumNode] = {}
        self._network: Final = network
        self._timeline: Final = timeline
        self._oracle: Final = oracle

    def send(
        self,
        node: "QuorumNode",
        destination: int,
        request: Request,
        *,
        timeout_ms: int,
        done: Callable[[Outcome], None],
    ) -> None:
        """Send a request; `done` gets one outcome, unless the process ends before."""
        target, call = self._node_at(node.node_id, destination), Call(node, request, done)
        self._inspect_request(node.node_id, request)
        for after_us in self._network.arrivals_us(node.node_id, target):
            self._timeline.push(after_us, self._arrived, target, call)
        self._timeline.push(timeout_ms * 1000, call.end, None)

    def _node_at(self, node_id: int, destination: int) -> int:
        """Return the node of this id; below 0, one of the others: -2 is the first."""
        if destination >= 0:
            return destination
        return [other for other in sorted(self.nodes) if other != node_id][-2 - destination]

    def _inspect_request(self, node_id: int, request: Request) -> None:
        match request:
            case VoteRequest(replica_epoch=epoch, pre_vote=pre_vote):
                self._oracle.stands(node_id)
                if not pre_vote:
                    self._oracle.saw_vote(node_id, epoch, node_id)
            case BeginQuorumEpochRequest(leader_epoch=epoch):
                self._oracle.saw_leader(node_id, epoch)
            case (
                FetchRequest(current_leader_epoch=epoch)
                | FetchSnapshotRequest(current_leader_epoch=epoch)
                | EndQuorumEpochRequest(leader_epoch=epoch)
            ):
                pass
            case _:  # a change of the voters
                return
        self._oracle.showed_epoch(node_id, epoch)

    def _arrived(self, target: int, call: Call) -> None:
        node = self.nodes[target]
        refuse = partial(self._refuse, target, call)
        if not node.machine.is_up:
            refuse()
            return
        reply = Reply(partial(self._respond, target, call), refuse)
        node.call(node.driver.request, call.request, reply)

    def _refuse(self, target: int, call: Call) -> None:
        """Let the caller see that `target` refuses the connection, if a message gets through."""
        for after_us in self._network.arrivals_us(target, call.node.node_id)[:1]:
            self._timeline.push(after_us, call.end, None)

    def _respond(self, target: int, call: Call, outcome: tuple[Response, bytes | None]) -> None:
        self._inspect_response(target, call.request, outcome[0])
        for after_us in self._network.arrivals_us(target, call.node.node_id):
            self._timeline.push(after_us, call.end, outcome)

    def _inspect_response(self, node_id: int, request: Request, response: Response) -> None:
        if not isinstance(response, FetchSnapshotResponse):  # a read may outlast an election
            self._oracle.showed_epoch(node_id, response.leader_epoch)
        match response:
            case VoteResponse(vote_granted=True) if isinstance(request, VoteRequest):
                self._oracle.votes_as(node_id, request.voter_directory_id)
                if not request.pre_vote:
                    self._oracle.saw_vote(node_id, response.leader_epoch, request.replica_id)
            case FetchResponse(error_code=ErrorCode.NONE, leader_epoch=epoch):
                self._oracle.saw_leader(node_id, epoch)
                is_current = isinstance(request, FetchRequest) and (
                    request.current_leader_epoch == epoch
                )
                check(is_current, f"fetch-epoch: {node_id} answers in epoch {epoch}")
            case _:
                pass
