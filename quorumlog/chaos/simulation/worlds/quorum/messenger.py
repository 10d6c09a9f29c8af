"""Requests and answers between simulated processes, as HTTP over TCP carries them.

A process that died refuses at once; a machine without power, or a cut link, is silent until the
request times out. The oracle looks at every message that is sent.
"""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from quorumlog.chaos.simulation.kernel.network import Network
from quorumlog.chaos.simulation.worlds.quorum.node import SimNode, describe
from quorumlog.chaos.simulation.worlds.quorum.oracle import Oracle, check
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import (
    BeginQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId


class Push(Protocol):
    """How to do something later."""

    def __call__(self, after_us: int, action: Callable[..., None], *arguments: object) -> None:
        """Call `action` after so many simulated microseconds."""


class Messenger:
    """Carries messages; what a process learns goes through `feed`."""

    def __init__(
        self,
        nodes: Mapping[int, SimNode],
        network: Network,
        oracle: Oracle,
        *,
        push: Push,
        feed: Callable[[SimNode, events.Event], None],
    ) -> None:
        self._nodes: Final = nodes
        self._network: Final = network
        self._oracle: Final = oracle
        self._push: Final = push
        self._feed: Final = feed
        self._fetch_bytes_max: Final[int] = network.parameters["fetch_bytes_max"]
        self._last_token = 0

    def send_request(self, node: SimNode, effect: effects.SendRequest) -> None:
        """Send; exactly one outcome will be fed, unless the process ends."""
        request, target = effect.request, effect.destination
        self._inspect_request(node.node_id, request)
        node.waiting.add(effect.request_id)
        caller = (node.node_id, node.incarnation, effect.request_id, request)
        for after_us in self._network.arrivals_us(node.node_id, target):
            self._push(after_us, self._request_arrived, target, caller)
        timeout_us = effect.timeout_ms * 1000
        self._push(timeout_us, self._request_failed, node, node.incarnation, effect.request_id)

    def _inspect_request(self, node_id: int, request: Request) -> None:
        match request:
            case VoteRequest(replica_epoch=epoch, pre_vote=pre_vote):
                if not pre_vote:
                    self._oracle.saw_vote(node_id, epoch, node_id)
            case BeginQuorumEpochRequest(leader_epoch=epoch):
                self._oracle.saw_leader(node_id, epoch)
            case FetchRequest(current_leader_epoch=epoch):
                pass
            case _:
                epoch = request.leader_epoch
        self._oracle.showed_epoch(node_id, epoch)

    def _request_arrived(self, target: int, caller: tuple[int, int, int, Request]) -> None:
        node = self._nodes[target]
        source, incarnation, request_id, request = caller
        if not node.is_up:
            self.fail_request(target, source, incarnation, request_id)
            return
        self._last_token += 1
        node.asked[self._last_token] = caller
        self._feed(node, events.RequestReceived(request_id=self._last_token, request=request))

    def fail_request(self, target: int, source: int, incarnation: int, request_id: int) -> None:
        """Let the caller hear that nobody answers, if it can."""
        for after_us in self._network.arrivals_us(target, source)[:1]:
            self._push(after_us, self._request_failed, self._nodes[source], incarnation, request_id)

    def _request_failed(self, node: SimNode, incarnation: int, request_id: int) -> None:
        is_meant = node.incarnation == incarnation and node.is_up
        if is_meant and request_id in node.waiting:
            node.waiting.discard(request_id)
            self._feed(node, events.RequestFailed(request_id=request_id))

    def answer_fetch(self, node: SimNode, effect: effects.AnswerFetch) -> None:
        """Read the records, and send them. Raises StorageError."""
        records = b""
        if effect.records_from < effect.records_to:
            found = node.log.read(
                effect.records_from,
                max_bytes=self._fetch_bytes_max,
                end_offset=effect.records_to,
            )
            records = found.records
        self.send_response(node, effect.request_id, effect.response, records)

    def send_response(self, node: SimNode, token: int, response: Response, records: bytes) -> None:
        """Answer the request that the process knows by `token`."""
        source, incarnation, request_id, request = node.asked.pop(token)
        self._inspect_response(node, request, response)
        for after_us in self._network.arrivals_us(node.node_id, source):
            caller, answer = (incarnation, request_id), (response, records)
            self._push(
                after_us, self._response_arrived, self._nodes[source], caller, node.node_id, answer
            )

    def _inspect_response(self, node: SimNode, request: Request, response: Response) -> None:
        self._oracle.showed_epoch(node.node_id, response.leader_epoch)
        match response:
            case VoteResponse(vote_granted=True):
                if isinstance(request, VoteRequest) and not request.pre_vote:
                    self._oracle.saw_vote(node.node_id, response.leader_epoch, request.replica_id)
            case FetchResponse(error_code=ErrorCode.NONE, leader_epoch=epoch):
                self._oracle.saw_leader(node.node_id, epoch)
                is_current = isinstance(request, FetchRequest) and (
                    request.current_leader_epoch == epoch
                )
                check(is_current, f"fetch-epoch: {node.node_id} answers in epoch {epoch}")
            case _:
                pass

    def _response_arrived(
        self, node: SimNode, caller: tuple[int, int], source: int, answer: tuple[Response, bytes]
    ) -> None:
        incarnation, request_id = caller
        response, records = answer
        if node.incarnation != incarnation or not node.is_up or request_id not in node.waiting:
            return
        node.waiting.discard(request_id)
        described = None
        if records:
            node.keep_response(request_id, records)
            described = describe(records)
        received = events.ResponseReceived(
            request_id=request_id,
            source=BrokerId(source),
            response=response,
            records=described,
        )
        self._feed(node, received)
