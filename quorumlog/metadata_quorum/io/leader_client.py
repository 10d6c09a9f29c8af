"""A node's requests to the active controller: directly if it is this node, else over HTTP.

The client sends a request to the current leader, and repeats it when that node was not the
controller or did not answer, until the request's time is up. A user's change is repeated only while
it certainly was not made: the next controller could refuse it because it was made, or make it a
second time. Instead, the user gets the error that the outcome is unknown.

A broker's own requests are small, and may be decided twice: the client repeats them when the leader
is silent, too. A repeated request has the id of the first, and the same controller gives it the
same answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sized
from contextlib import contextmanager
from itertools import count
from typing import Any, Final, TypeVar, cast

from quorumlog.backoff import Backoff
from quorumlog.chance import random_bytes, random_fraction
from quorumlog.invariants import some
from quorumlog.metadata_quorum.cluster_changes import ClusterChange, RequestFor, parts_of
from quorumlog.metadata_quorum.controller_client import (
    NAMED_PER_REQUEST_MAX,
    ControllerUnavailable,
    NewVoter,
    RequestTooLarge,
    VoterChangeResult,
)
from quorumlog.metadata_quorum.controller_requests import (
    AlterConfigs,
    AlterReassignments,
    ControllerRequest,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    DescribeQuorum,
    ElectLeaders,
    FindTopics,
    UserChange,
    UserRequest,
)
from quorumlog.metadata_quorum.core.messages import (
    AddVoterRequest,
    RemoveVoterRequest,
    UpgradeKRaftVersionRequest,
    VoterChangeRequest,
    VoterChangeResponse,
)
from quorumlog.metadata_quorum.core.voter_sets import Voter
from quorumlog.metadata_quorum.driver.dependencies import ControllerDeposed, NotController
from quorumlog.metadata_quorum.io.rpc_client import RpcFailed, RpcTooLarge
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId

Askable = ControllerRequest | DescribeQuorum | VoterChangeRequest
_NotRepeated = UserChange | VoterChangeRequest
ResponseT = TypeVar("ResponseT")
RETRY: Final = Backoff(20, 500)


class LeaderWatch:
    """The current leader of the quorum, and a way to wait for the next one."""

    def __init__(self) -> None:
        self.leader_id = NO_LEADER
        self._changed = asyncio.Event()
        self._actions: Final[dict[Callable[[], None], None]] = {}  # in order

    def set(self, leader_id: BrokerId) -> None:
        """Set the leader, and wake every task that waits for a change."""
        self.leader_id = leader_id
        self._changed.set()
        self._changed = asyncio.Event()
        for action in tuple(self._actions):
            action()

    async def wait(self, timeout_s: float) -> None:
        """Return at the next change, or after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return

    @contextmanager
    def calling(self, action: Callable[[], None]) -> Iterator[None]:
        """Call `action` at each change of the leader or of its epoch, until the block ends."""
        self._actions[action] = None
        try:
            yield
        finally:
            del self._actions[action]


class LeaderClient:
    """Implements ControllerClient for the node `node_id`."""

    def __init__(
        self,
        *,
        node_id: BrokerId,
        leader: LeaderWatch,
        ask_local: Callable[[Askable, str], Awaitable[object]],
        ask_remote: Callable[[BrokerId, Askable, str, int], Awaitable[object]],
        request_timeout_ms: int,
        attempt_timeout_ms: int,
        kraft_version: Callable[[], int] = lambda: 0,
    ) -> None:
        """`kraft_version` returns the version in force on this node."""
        self._node_id: Final = node_id
        self._leader: Final = leader
        self._ask_local: Final = ask_local
        self._ask_remote: Final = ask_remote
        self._request_timeout_s: Final = request_timeout_ms / 1000
        self._attempt_timeout_ms: Final = attempt_timeout_ms
        self._kraft_version: Final = kraft_version
        self._client_token: Final = random_bytes(8).hex()  # unique among all clients
        self._request_numbers: Final = count(1)

    async def ask(self, request: RequestFor[ResponseT]) -> ResponseT:
        """See ControllerClient."""
        asked = cast(Askable, request)
        if _named_by(asked) > NAMED_PER_REQUEST_MAX:
            raise RequestTooLarge(
                f"A request may name at most {NAMED_PER_REQUEST_MAX} topics and configurations"
            )
        response: ResponseT = await self._ask(asked)
        return response

    @property
    def kraft_version(self) -> int:
        """See ControllerClient."""
        return self._kraft_version()

    async def add_voter(
        self, voter: NewVoter, *, ack_when_committed: bool = True
    ) -> VoterChangeResult:
        """See ControllerClient."""
        added = Voter(
            voter_id=voter.voter_id, directory_id=voter.directory_id, address=voter.address
        )
        request = AddVoterRequest(voter=added, ack_when_committed=ack_when_committed)
        return await self._change_voters(request)

    async def remove_voter(self, voter_id: BrokerId, directory_id: str) -> VoterChangeResult:
        """See ControllerClient."""
        request = RemoveVoterRequest(voter_id=voter_id, directory_id=directory_id)
        return await self._change_voters(request)

    async def upgrade_kraft_version(self, kraft_version: int) -> VoterChangeResult:
        """See ControllerClient."""
        return await self._change_voters(UpgradeKRaftVersionRequest(kraft_version=kraft_version))

    async def _change_voters(self, request: VoterChangeRequest) -> VoterChangeResult:
        response: VoterChangeResponse = await self._ask(request)
        return VoterChangeResult(
            error_code=response.error_code, error_message=response.error_message or None
        )

    async def _ask(self, request: Askable) -> Any:
        """Send a request until there is a response; return that. Raises ControllerUnavailable."""
        reason: Exception | None = None
        request_id = f"{self._client_token}-{next(self._request_numbers)}"
        try:
            async with asyncio.timeout(self._request_timeout_s):
                for failures in count(1):
                    try:
                        return await self._ask_leader(request, request_id)
                    except RpcTooLarge as error:
                        raise RequestTooLarge(str(error)) from error
                    except (NotController, RpcFailed) as error:
                        reason = error
                        # DEVIATION: Kafka's brokers send a change again after a lost answer.
                        # docs/decisions/0007-controller-retries.md
                        if isinstance(request, _NotRepeated) and not _is_definite(error):
                            raise ControllerUnavailable(str(error)) from error
                    backoff_ms = RETRY.delay_ms(failures, random_fraction())
                    await self._leader.wait(backoff_ms / 1000)
        except TimeoutError:
            raise ControllerUnavailable(
                f"no active controller answered within {self._request_timeout_s} s: {reason}"
            ) from reason

    async def _ask_leader(self, request: Askable, request_id: str) -> object:
        answer = await self._ask_node(self._leader.leader_id, request, request_id)
        match answer:
            case VoterChangeResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER):
                raise NotController(answer.error_message)
            case _:
                return answer

    async def _ask_node(self, leader_id: BrokerId, request: Askable, request_id: str) -> object:
        if leader_id == self._node_id:
            return await self._ask_local(request, request_id)
        if leader_id == NO_LEADER:
            raise NotController("this node has no leader of the quorum")
        if isinstance(request, UserRequest):
            return await self._ask_while_it_leads(leader_id, request, request_id)
        timeout_ms = self._attempt_timeout_ms
        if isinstance(request, VoterChangeRequest):
            timeout_ms *= 2  # the leader waits for the commit, for up to one attempt timeout
        return await self._ask_remote(leader_id, request, request_id, timeout_ms)

    async def _ask_while_it_leads(
        self, leader_id: BrokerId, request: Askable, request_id: str
    ) -> object:
        """Send once, for all the time left. Raises ControllerDeposed when the leader changes."""
        timeout_ms = int(self._request_timeout_s * 1000)
        answer = asyncio.ensure_future(self._ask_remote(leader_id, request, request_id, timeout_ms))
        is_deposed = False

        def give_up() -> None:
            nonlocal is_deposed
            is_deposed = answer.cancel() or is_deposed

        with self._leader.calling(give_up):
            try:
                return await answer
            except asyncio.CancelledError:
                if not is_deposed or some(asyncio.current_task(), "it runs").cancelling():
                    raise
        raise ControllerDeposed(f"node {leader_id} was silent until it lost the leadership")


def _named_by(request: Askable) -> int:
    named: Sized
    match request:
        case AlterConfigs(topics=topics):
            return len(topics) + sum(len(topic.changes) for topic in topics)
        case (
            CreateTopics(topics=named)
            | FindTopics(names=named)
            | DeleteTopics(topic_ids=named)
            | CreatePartitions(topics=named)
            | ElectLeaders(partitions=named)
            | AlterReassignments(wanted=named)
        ):
            return len(named)
        case _:
            return parts_of(request) if isinstance(request, ClusterChange) else 0


def _is_definite(error: NotController | RpcFailed) -> bool:
    """Return whether the request certainly was not carried out."""
    if isinstance(error, RpcFailed):
        return error.definite
    return not isinstance(error, ControllerDeposed)
