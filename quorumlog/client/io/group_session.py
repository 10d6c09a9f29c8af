"""Drives one group member: passes events to its membership core, performs the effects in order.

An event is handled at once. One task performs the effects, one after the other, so that a join
never overtakes the revocation before it. Requests run in tasks of their own; their responses are
events.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Final, Protocol, assert_never

from quorumlog.client.core import membership_events as facts
from quorumlog.client.core.absences import listed
from quorumlog.client.core.group_protocol import PROTOCOL_TYPE
from quorumlog.client.core.membership_events import Effect, Event
from quorumlog.client.core.waits import Wait
from quorumlog.client.errors import DENIED, AssignorError, KafkaError, denied
from quorumlog.client.io.assignor_threads import computed_assignments
from quorumlog.client.io.cluster import Cluster
from quorumlog.client.io.consumer_heartbeats import (
    answered,
    heartbeat_request,
    names_of_topics,
    new_membership,
)
from quorumlog.client.io.coordinator import Coordinator
from quorumlog.client.settings import ConsumerSettings
from quorumlog.invariants import InvariantViolation
from quorumlog.tasks import Tasks
from quorumlog.wire.codec.error_codes import RETRIABLE, ErrorCode, known
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.message import Request, ResponseT
from quorumlog.wire.codec.messages.describe_groups import DescribeGroupsRequest
from quorumlog.wire.codec.messages.heartbeat import HeartbeatRequest
from quorumlog.wire.codec.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from quorumlog.wire.codec.messages.leave_group import LeaveGroupRequest, MemberIdentity
from quorumlog.wire.codec.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from quorumlog.wire.codec.topic_names import is_topic_name

_logger: Final = logging.getLogger(__name__)

REBALANCE_GRACE_MS: Final = 5_000  # beyond the rebalance timeout, for the response
REBALANCE_EXPECTED_MS: Final = 10_000  # for the other members; Kafka waits 3 s for the first ones
LEAVE_TIMEOUT_MS: Final = 2_000
_BROKEN: Final = KafkaError(
    ErrorCode.UNKNOWN_SERVER_ERROR, "the group task ended: see the log", definite=False
)


_REBALANCING: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
    }
)
"""Codes of a working coordinator for a member that joins, or has to join again."""


class Reader(Protocol):
    """The consumer that the group session notifies."""

    async def revoke(self, partitions: tuple[TopicPartition, ...], *, lost: bool) -> None:
        """Stop reading `partitions`; unless `lost`, commit first. Calls the user's listener."""

    async def accept(
        self,
        partitions: tuple[TopicPartition, ...],
        added: tuple[TopicPartition, ...],
        topic_ids: Mapping[str, bytes],
    ) -> None:
        """Read exactly `partitions`. Calls the user's listener with `added`."""

    def fail(self, error: KafkaError) -> None:
        """Raise `error` from the user's next poll."""

    def wake(self) -> None:
        """Wake `poll` and the fetcher: partitions have changed."""


class GroupSession:
    """One member's session in its group, until `close`."""

    def __init__(
        self, cluster: Cluster, settings: ConsumerSettings, coordinator: Coordinator, reader: Reader
    ) -> None:
        self.membership: Final = new_membership(settings)
        self._cluster: Final = cluster
        self._settings: Final = settings
        self._coordinator: Final = coordinator
        self._reader: Final = reader
        self._loop: Final = asyncio.get_running_loop()
        self._effects: Final[deque[Effect]] = deque()
        self._changes = 0  # Revoke and Assign effects not yet done
        self._wake: Final = asyncio.Event()
        self._tasks: Final = Tasks(self._handle_unexpected)
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._wait: Wait | None = None  # to be a member
        self._tasks.start(self._perform_all())
        self._rack_changes = 0  # of the metadata, when the last assignment was computed
        self._listed: frozenset[str] | None = None  # topics that the membership has
        cluster.on_change.append(self._handle_change)
        cluster.lookout.topics.append(self._subscribed)

    def _subscribed(self) -> tuple[str, ...]:
        return self.membership.topics

    def subscribe(self, topics: tuple[str, ...], pattern: str | None) -> None:
        """Join the group with these topics, or change them; `pattern`: also matching topics."""
        is_classic = self._settings.group_protocol == "classic"
        self._cluster.list_topics(wanted=is_classic and pattern is not None)
        self._listed = None
        self.post(facts.Subscribed(topics=topics, pattern=pattern))

    def post(self, event: Event) -> None:
        """Handle one event now; queue its effects, or start them if they are heartbeats."""
        effects = self.membership.step(self._cluster.now_ms(), event)
        if effects:
            _logger.debug("%s: %s: %s", self._coordinator.group_id, event, effects)
        for effect in effects:
            # Heartbeats must not wait for the user's listener.
            if isinstance(effect, facts.SendHeartbeat):
                self._tasks.start(self._heartbeat(effect))
                continue
            if isinstance(effect, facts.SendConsumerHeartbeat):
                self._tasks.start(self._consumer_heartbeat(effect))
                continue
            self._changes += isinstance(effect, facts.Revoke | facts.Assign)
            self._effects.append(effect)
            self._wake.set()
        self._set_timer()

    @property
    def is_changing(self) -> bool:
        """True while partitions are revoked or assigned: `poll` must not return records then."""
        return self._changes > 0

    def _set_timer(self) -> None:
        tick_at = self.membership.next_tick_ms(self._cluster.now_ms()) / 1000
        if self._timer is not None and not self._timer.cancelled():
            if self._loop.time() < self._timer.when() <= tick_at:
                return  # earlier than needed does no harm
            self._timer.cancel()
        self._timer = None
        if tick_at != float("inf"):
            self._timer = self._loop.call_at(max(tick_at, self._loop.time() + 0.001), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.post(facts.Ticked())

    def _handle_change(self) -> None:
        if self.membership.coordinator_known and self._coordinator.is_lost:
            self._coordinator.mark_unknown()
            self.post(facts.CoordinatorLost())
        listed = self._cluster.metadata.listed
        if listed is not None and listed is not self._listed:
            self._listed = listed
            self.post(facts.TopicsListed(names=listed))
        if self.membership.is_leader:
            metadata = self._cluster.metadata
            counts = metadata.partition_counts(self.membership.counts)
            racks_changed = metadata.rack_changes != self._rack_changes
            self._rack_changes = metadata.rack_changes
            self.post(facts.CountsChanged(counts=counts, racks_changed=racks_changed))

    async def _perform_all(self) -> None:
        while not self._is_closed:  # the listener, which runs in this task, may leave the group
            await self._wake.wait()
            self._wake.clear()
            while self._effects:
                await self._perform(self._effects.popleft())

    def _handle_unexpected(self, error: BaseException) -> None:
        """Log a task's unexpected error, and let `poll` raise: the member may be stuck."""
        _logger.error("group %s", self._coordinator.group_id, exc_info=error)
        self._reader.fail(_BROKEN)

    async def _perform(self, effect: Effect) -> None:  # noqa: C901, PLR0912 - one flat case per kind of effect
        match effect:
            case facts.FindCoordinator():
                self._coordinator.mark_unknown()
                self._tasks.start(self._find())
            case facts.SendJoin():
                self._tasks.start(self._join(effect))
            case facts.LookUpTopics(topics=topics):
                self._tasks.start(self._look_up(topics))
            case facts.ComputeAssignment():
                self._tasks.start(self._compute(effect))
            case facts.SendSync():
                self._tasks.start(self._sync(effect))
            case facts.DescribeGroup(generation_id=generation_id):
                self._tasks.start(self._describe(generation_id))
            case facts.NameTopics(topic_ids=topic_ids):
                self._tasks.start(self._name_topics(topic_ids))
            case facts.SendHeartbeat() | facts.SendConsumerHeartbeat():
                raise InvariantViolation("heartbeats do not wait in line")
            case facts.SendLeave():
                await self._leave(effect)
            case facts.Revoke(partitions=partitions, lost=lost):
                await self._reader.revoke(partitions, lost=lost)
                self._changes -= 1
                self.post(facts.RevocationDone())
                self._reader.wake()
            case facts.Assign(partitions=partitions, added=added, topic_ids=topic_ids):
                await self._reader.accept(partitions, added, topic_ids)
                self._changes -= 1
                self._reader.wake()
            case facts.Fail(error_code=error_code, message=message, error=error):
                text = self._message(error_code, message)
                self._reader.fail(error or KafkaError(error_code, text, definite=True))
            case _:
                assert_never(effect)

    # --- requests; each ends with an event ---

    async def _find(self) -> None:
        wait = self._wait
        try:
            with nullcontext() if wait is None else self._cluster.lookout.within(wait):
                await self._coordinator.find()
        except KafkaError as error:
            self.post(facts.CoordinatorRefused())
            self._reader.fail(error)
        else:
            self.post(facts.CoordinatorFound())

    async def _join(self, effect: facts.SendJoin) -> None:
        settings = self._settings
        request = JoinGroupRequest(
            group_id=self._coordinator.group_id,
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.max_poll_interval_ms,
            member_id=effect.member_id,
            group_instance_id=settings.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name, metadata in effect.protocols
            ],
        )
        timeout_ms = settings.max_poll_interval_ms + REBALANCE_GRACE_MS
        is_first = not effect.member_id and settings.group_instance_id is None
        expected_ms = 0 if is_first else REBALANCE_EXPECTED_MS
        answer = await self._asked(request, timeout_ms, expected_ms)
        if isinstance(answer, KafkaError):
            self.post(facts.JoinAnswered(error_code=_as_lost(answer)))
            return
        members = tuple(
            facts.JoinedMember(
                member_id=one.member_id, instance_id=one.group_instance_id, metadata=one.metadata
            )
            for one in answer.members
        )
        self.post(
            facts.JoinAnswered(
                error_code=answer.error_code,
                generation_id=answer.generation_id,
                member_id=answer.member_id,
                leader_id=answer.leader,
                protocol=answer.protocol_name or "",
                members=members,
                skip_assignment=answer.skip_assignment,
            )
        )

    def _message(self, code: int, message: str | None) -> str:
        """Return the message for `poll` of a refused join, sync or heartbeat."""
        where = f"group {self._coordinator.group_id}"
        if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            names = sorted(self._subscribed())
            refused = [name for name in names if self._cluster.topic_error(name) is not None]
            return denied(code, f"topic {listed(refused or names)}", "READ")
        if code in DENIED:
            return denied(code, where, "READ")
        return where if message is None else f"{where}: {message}"

    async def _look_up(self, topics: tuple[str, ...]) -> None:
        """Post the partition counts of the members' topics; a missing topic has no count."""
        topics = tuple(name for name in topics if is_topic_name(name))
        self._cluster.add_topics(topics)
        if {*topics} - {*self._cluster.metadata.topics}:
            await self._cluster.next_update()
        counts = self._cluster.metadata.partition_counts(topics)
        self._rack_changes = self._cluster.metadata.rack_changes
        self.post(facts.TopicsLookedUp(counts=counts))

    async def _compute(self, effect: facts.ComputeAssignment) -> None:
        if effect.assignor.is_own and self._wait is not None:
            self._wait.fail(f"the assignor {effect.assignor.name!r} has not returned")
        generation_id, limit_ms = effect.generation_id, self._settings.max_poll_interval_ms
        try:
            assignments = await computed_assignments(effect, self._cluster.metadata, limit_ms)
        except AssignorError as error:
            _logger.exception("group %s", self._coordinator.group_id)
            self.post(facts.AssignmentFailed(generation_id=generation_id, error=error))
        else:
            self.post(
                facts.AssignmentComputed(generation_id=generation_id, assignments=assignments)
            )

    async def _sync(self, effect: facts.SendSync) -> None:
        request = SyncGroupRequest(
            group_id=self._coordinator.group_id,
            generation_id=effect.generation_id,
            member_id=effect.member_id,
            group_instance_id=self._settings.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=effect.protocol,
            assignments=[
                SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                for member_id, assignment in effect.assignments
            ],
        )
        timeout_ms = self._settings.max_poll_interval_ms + REBALANCE_GRACE_MS
        answer = await self._asked(request, timeout_ms, REBALANCE_EXPECTED_MS)
        if isinstance(answer, KafkaError):
            self.post(facts.SyncAnswered(error_code=_as_lost(answer)))
            return
        if answer.error_code == ErrorCode.NONE:
            self._joined(is_member=True)
        self.post(facts.SyncAnswered(error_code=answer.error_code, assignment=answer.assignment))

    async def _asked(
        self, request: Request[ResponseT], timeout_ms: float | None = None, expected_ms: float = 0
    ) -> ResponseT | KafkaError:
        """Return the response to a request that is a part of the wait for membership, or its error.

        The wait gets a retriable error of the response, and ends after a lasting one.
        """
        lookout, api = self._cluster.lookout, type(request).__name__.removesuffix("Request")
        if self._wait is None:
            self._wait = lookout.begin(f"group {self._coordinator.group_id}", over="joined")
        with lookout.within(wait := self._wait):
            try:
                answer: Any = await self._coordinator.send(
                    request, timeout_ms=timeout_ms, expected_ms=expected_ms
                )
            except KafkaError as error:
                wait.fail(error, about=api)
                return error
            code = known(answer.error_code)
            if code in RETRIABLE:
                wait.fail(code.name, about=api)
            elif code not in _REBALANCING:
                self._joined(is_member=False)
        response: ResponseT = answer
        return response

    def _joined(self, *, is_member: bool) -> None:
        """End the wait to be a member, with or without success."""
        if self._wait is not None:
            self._cluster.lookout.end(self._wait, is_answered=is_member)
            self._wait = None

    async def _describe(self, generation_id: int) -> None:
        group_id, assignments = self._coordinator.group_id, None
        try:
            answer = await self._coordinator.send(DescribeGroupsRequest(groups=[group_id]))
        except KafkaError as error:
            _logger.debug("describing %s: %r", group_id, error)  # the member joins again
        else:
            described = answer.groups[0]
            assignments = tuple(member.member_assignment for member in described.members)
        self.post(facts.GroupDescribed(generation_id=generation_id, assignments=assignments))

    async def _heartbeat(self, effect: facts.SendHeartbeat) -> None:
        request = HeartbeatRequest(
            group_id=self._coordinator.group_id,
            generation_id=effect.generation_id,
            member_id=effect.member_id,
            group_instance_id=self._settings.group_instance_id,
        )
        try:
            timeout_ms = self._settings.session_timeout_ms / 3
            error_code = (await self._coordinator.send(request, timeout_ms=timeout_ms)).error_code
        except KafkaError as error:
            error_code = _as_lost(error)
        self.post(
            facts.HeartbeatAnswered(generation_id=effect.generation_id, error_code=error_code)
        )

    async def _consumer_heartbeat(self, effect: facts.SendConsumerHeartbeat) -> None:
        request = heartbeat_request(effect, self._settings, self._coordinator.group_id)
        answer = await self._asked(request)
        if isinstance(answer, KafkaError):
            fact = facts.ConsumerHeartbeatAnswered(
                attempt=effect.attempt, error_code=_as_lost(answer), error_message=answer.message
            )
            self.post(fact)
            return
        if answer.error_code == ErrorCode.NONE:
            self._joined(is_member=True)
        self.post(answered(effect, answer))

    async def _name_topics(self, topic_ids: tuple[bytes, ...]) -> None:
        try:
            names = await names_of_topics(self._cluster, topic_ids)
        except KafkaError as error:
            _logger.debug("topics of %s: %r", self._coordinator.group_id, error)
            names = {}  # the member requests the names again in its next poll
        self.post(facts.TopicsNamed(names=names))

    async def _leave(self, effect: facts.SendLeave) -> None:
        if self._coordinator.broker_id is None:
            return  # without heartbeats the coordinator removes the member
        member = MemberIdentity(member_id=effect.member_id, reason=effect.reason)
        request = LeaveGroupRequest(
            group_id=self._coordinator.group_id, member_id=effect.member_id, members=[member]
        )
        await self._say_goodbye(request)

    async def _say_goodbye(self, request: Request[Any]) -> None:
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_MS / 1000):
                await self._coordinator.send(request)
        except (KafkaError, TimeoutError) as error:
            _logger.debug("leaving %s: %r", self._coordinator.group_id, error)

    # --- the end ---

    async def close(self) -> None:
        """Leave the group and stop, without calling the reader."""
        self._cluster.on_change.remove(self._handle_change)
        self._cluster.lookout.topics.remove(self._subscribed)
        self._cluster.list_topics(wanted=False)
        self._is_closed = True
        self._effects.clear()
        self._joined(is_member=False)
        self._wake.set()
        await self._tasks.stop()
        if self._timer is not None:
            self._timer.cancel()
        left = self.membership.step(self._cluster.now_ms(), facts.Subscribed(topics=()))
        for effect in left:
            if isinstance(effect, facts.SendLeave):
                await self._leave(effect)
            if isinstance(effect, facts.SendConsumerHeartbeat) and self._coordinator.is_known:
                group_id = self._coordinator.group_id
                await self._say_goodbye(heartbeat_request(effect, self._settings, group_id))


def _as_lost(error: KafkaError) -> int:
    """Return the error code for the core: an unreachable coordinator counts as lost."""
    if error.code == ErrorCode.BROKER_NOT_AVAILABLE:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return error.code
