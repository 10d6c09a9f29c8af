"""Requests and answers between simulated nodes, as HTTP over TCP carries them.

A process that died refuses at once. A machine without power, or a cut link, is silent until the
request times out. The oracle sees every message that is sent.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from quorumlog.chaos.simulation.kernel.network import Network
from quorumlog.chaos.simulation.kernel.rules import check
from quorumlog.chaos.simulation.kernel.timeline import Timeline
from quorumlog.chaos.simulation.worlds.quorum.oracle import Oracle
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    PlainResponse,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)
from quorumlog.metadata_quorum.log.metadata_log import describe
from quorumlog.metadata_quorum.log.snapshot_files import snapshot_answer
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId

if TYPE_CHECKING:
    from quorumlog.chaos.simulation.worlds.quorum.node import QuorumNode


OnAnswer = Callable[[PlainResponse], None]
SNAPSHOT_BYTES_LEAST: Final = 200  # of one answer: some five make a snapshot


class Caller(NamedTuple):
    """The process that made a request, and its own name for it."""

    node_id: int
    incarnation: int
    request_id: int
    request: Request
    destination: (
        int  # as the caller knows it: a node, or below 0 one of the addresses to begin with
    )


class Messenger:
    """Carries messages between `nodes`, which the world fills."""

    def __init__(
        self, network: Network, timeline: Timeline, oracle: Oracle, *, fetch_bytes_max: int
    ) -> None:
        self.nodes: Mapping[int, QuorumNode] = {}
        self._network: Final = network
        self._timeline: Final = timeline
        self._oracle: Final = oracle
        self._fetch_bytes_max: Final = fetch_bytes_max
        self._last_token = 0

    def send_request(self, node: "QuorumNode", effect: effects.SendRequest) -> None:
        """Send a request. Exactly one outcome will be fed, unless the process ends."""
        request, target = effect.request, self._node_at(node.node_id, effect.destination)
        self._inspect_request(node.node_id, request)
        node.waiting.add(effect.request_id)
        caller = Caller(
            node.node_id, node.machine.incarnation, effect.request_id, request, effect.destination
        )
        for after_us in self._network.arrivals_us(node.node_id, target):
            self._timeline.push(after_us, self._request_arrived, target, caller)
        self._timeline.push(effect.timeout_ms * 1000, self._request_failed, caller)

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
            case FetchRequest(current_leader_epoch=epoch):
                pass
            case FetchSnapshotRequest(current_leader_epoch=epoch):
                pass
            case EndQuorumEpochRequest(leader_epoch=epoch):
                pass
            case _:  # a change of the voters
                return
        self._oracle.showed_epoch(node_id, epoch)

    def _request_arrived(self, target: int, caller: Caller) -> None:
        node = self.nodes[target]
        if not node.machine.is_up:
            self.fail_request(target, caller)
            return
        token = self.new_token()
        node.asked[token] = caller
        node.feed(events.RequestReceived(request_id=token, request=caller.request))

    def new_token(self) -> int:
        """Return the name of a request that no other has."""
        self._last_token += 1
        return self._last_token

    def fail_request(self, target: int, caller: Caller) -> None:
        """Let the caller learn that `target` refuses the connection, if a message gets through."""
        for after_us in self._network.arrivals_us(target, caller.node_id)[:1]:
            self._timeline.push(after_us, self._request_failed, caller)

    def _request_failed(self, caller: Caller) -> None:
        node = self._waiting_node(caller)
        if node is not None:
            node.feed(events.RequestFailed(request_id=caller.request_id))

    def _waiting_node(self, caller: Caller) -> "QuorumNode | None":
        """Return the node if it still waits for an outcome of this request; it has one now."""
        node = self.nodes[caller.node_id]
        is_meant = node.machine.is_up and node.machine.incarnation == caller.incarnation
        if not is_meant or caller.request_id not in node.waiting:
            return None
        node.waiting.discard(caller.request_id)
        return node

    def answer_fetch(
        self, node: "QuorumNode", effect: effects.AnswerFetch | effects.AnswerFetchSnapshot
    ) -> None:
        """Read the records, or bytes of a snapshot, and send them. Raises StorageError."""
        if isinstance(effect, effects.AnswerFetchSnapshot):
            self._answer_fetch_snapshot(node, effect)
            return
        records = b""
        if effect.records_from < effect.records_to:
            records = node.log.read(effect.records_from, effect.records_to, self._fetch_bytes_max)
        self.send_response(node, effect.request_id, effect.response, records)

    def _answer_fetch_snapshot(
        self, node: "QuorumNode", effect: effects.AnswerFetchSnapshot
    ) -> None:
        count = max(self._fetch_bytes_max, SNAPSHOT_BYTES_LEAST)
        found = node.log.snapshots.read_bytes(effect.snapshot_id, effect.position, count)
        response, content = snapshot_answer(effect, found)
        self.send_response(node, effect.request_id, response, content or b"")

    def send_response(
        self, node: "QuorumNode", token: int, response: Response, records: bytes
    ) -> None:
        """Answer the request that the process knows by `token`."""
        caller = node.asked.pop(token)
        self._inspect_response(node.node_id, caller.request, response)
        for after_us in self._network.arrivals_us(node.node_id, caller.node_id):
            self._timeline.push(after_us, self._response_arrived, caller, response, records)

    def _inspect_response(self, node_id: int, request: Request, response: Response) -> None:
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

    def _response_arrived(self, caller: Caller, response: Response, records: bytes) -> None:
        node = self._waiting_node(caller)
        if node is None:
            return
        count, fetched = 0, None
        if isinstance(response, FetchSnapshotResponse):
            count = len(records)
        elif records:
            records, fetched = describe(records)
        received = events.ResponseReceived(
            request_id=caller.request_id,
            source=BrokerId(caller.destination),
            response=response,
            records=fetched,
            snapshot_bytes=count,
        )
        node.feed_response(received, records)
