"""The way from any node to the active controller: directly if it is this one, else over HTTP.

It follows the leader as this node knows it, and asks again when it was the wrong one, did not
answer, or went away, until the request's time is up. A repeated request carries the id of the
first: the same controller gives it the first one's answer. Another controller decides it anew.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any, Final

from quorumlog.metadata_quorum.controller.requests import (
    AllocateProducerIds,
    AlterPartitions,
    AlterTopicConfigs,
    ControllerRequest,
    CreateTopics,
    DeleteTopics,
    GrowTopic,
    IsrResults,
    ProducerIdsReply,
    TopicResults,
)
from quorumlog.metadata_quorum.controller_client import (
    BrokerHeartbeat,
    BrokerRegistration,
    ControllerUnavailable,
    HeartbeatReply,
    IsrProposal,
    IsrResult,
    NewTopic,
    ProducerIdBlock,
    RegistrationReply,
    TopicResult,
)
from quorumlog.metadata_quorum.io.active_controller import NotController
from quorumlog.metadata_quorum.io.rpc import RpcFailed
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId

RETRY_S: Final = (0.02, 0.5)  # first, last


class LeaderWatch:
    """Who leads, as far as this node knows, and a way to wait until somebody else does."""

    def __init__(self) -> None:
        self.leader_id = NO_LEADER
        self._changed = asyncio.Event()

    def set(self, leader_id: BrokerId) -> None:
        """Note a change and wake whoever waits for one."""
        self.leader_id = leader_id
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, timeout_s: float) -> None:
        """Return at the next change, or after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return


class QuorumControllerClient:
    """Implements ControllerClient and BrokerRegistrar for the node `node_id`."""

    def __init__(
        self,
        *,
        node_id: BrokerId,
        leader: LeaderWatch,
        ask_local: Callable[[ControllerRequest, str], Awaitable[object]],
        ask_remote: Callable[[BrokerId, ControllerRequest, str, int], Awaitable[object]],
        request_timeout_ms: int,
        attempt_timeout_ms: int,
    ) -> None:
        self._node_id: Final = node_id
        self._leader: Final = leader
        self._ask_local: Final = ask_local
        self._ask_remote: Final = ask_remote
        self._request_timeout_s: Final = request_timeout_ms / 1000
        self._attempt_timeout_ms: Final = attempt_timeout_ms
        self._client_token: Final = secrets.token_hex(8)  # ours, among all that ever ask
        self._request_numbers: Final = count(1)

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """See ControllerClient."""
        request = CreateTopics(topics=tuple(topics), validate_only=validate_only)
        response: TopicResults = await self._ask(request)
        return list(response.results)

    async def delete_topics(self, names: Sequence[str]) -> list[TopicResult]:
        """See ControllerClient."""
        response: TopicResults = await self._ask(DeleteTopics(names=tuple(names)))
        return list(response.results)

    async def grow_topic(self, request: GrowTopic) -> TopicResult:
        """Add partitions to a topic; answered after the commit."""
        response: TopicResults = await self._ask(request)
        return response.results[0]

    async def alter_topic_configs(self, request: AlterTopicConfigs) -> TopicResult:
        """Change the configuration of a topic; answered after the commit."""
        response: TopicResults = await self._ask(request)
        return response.results[0]

    async def alter_partitions(
        self, broker_epoch: int, proposals: Sequence[IsrProposal]
    ) -> tuple[ErrorCode, list[IsrResult]]:
        """See ControllerClient."""
        request = AlterPartitions(
            broker_id=self._node_id, broker_epoch=broker_epoch, proposals=tuple(proposals)
        )
        response: IsrResults = await self._ask(request)
        return response.error_code, list(response.results)

    async def allocate_producer_ids(self, broker_epoch: int) -> tuple[ErrorCode, ProducerIdBlock]:
        """See ControllerClient."""
        request = AllocateProducerIds(broker_id=self._node_id, broker_epoch=broker_epoch)
        response: ProducerIdsReply = await self._ask(request)
        return response.error_code, response.block

    async def register_broker(self, registration: BrokerRegistration) -> RegistrationReply:
        """See BrokerRegistrar."""
        reply: RegistrationReply = await self._ask(registration)
        return reply

    async def broker_heartbeat(self, heartbeat: BrokerHeartbeat) -> HeartbeatReply:
        """See BrokerRegistrar."""
        reply: HeartbeatReply = await self._ask(heartbeat)
        return reply

    async def _ask(self, request: ControllerRequest) -> Any:
        """Ask until there is an answer, of the request's own kind. Raises ControllerUnavailable."""
        reason: Exception | None = None
        request_id = f"{self._client_token}-{next(self._request_numbers)}"
        backoff_s = RETRY_S[0]
        try:
            async with asyncio.timeout(self._request_timeout_s):
                while True:
                    try:
                        return await self._ask_leader(request, request_id)
                    except (NotController, RpcFailed) as error:
                        reason = error
                    await self._leader.wait(backoff_s)
                    backoff_s = min(backoff_s * 2, RETRY_S[1])
        except TimeoutError:
            raise ControllerUnavailable(
                f"no active controller answered within {self._request_timeout_s} s: {reason}"
            ) from reason

    async def _ask_leader(self, request: ControllerRequest, request_id: str) -> object:
        leader_id = self._leader.leader_id
        if leader_id == self._node_id:
            return await self._ask_local(request, request_id)
        if leader_id == NO_LEADER:
            raise NotController("nobody is known to lead the quorum")
        return await self._ask_remote(leader_id, request, request_id, self._attempt_timeout_ms)
