"""The classic protocol of a member, with cooperative rebalances (KIP-429).

It keeps its partitions while the group rebalances, and joins again after it has revoked those
assigned to others. As the leader it assigns no partition that another member owns, and stores the
partition counts of the topics. A static leader that comes back assigns anew if they have changed.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from quorumlog.broker.groups.core.requests import (
    Heartbeat,
    Join,
    JoinResult,
    Leave,
    LeavingMember,
    Sync,
    SyncResult,
)
from quorumlog.chaos.simulation.worlds.groups.consumer.group_log import (
    VERSION_BYTES,
    Named,
    assignment_of,
)
from quorumlog.chaos.simulation.worlds.groups.consumer.speaking import (
    NOT_THERE,
    REBALANCE_MS,
    Answered,
    Life,
    Question,
    Subscription,
)
from quorumlog.chaos.simulation.worlds.groups.member_process import (
    BACKOFF_US,
    GROUP_ID,
    JOIN_TIMEOUT_US,
    REQUEST_TIMEOUT_US,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages import (
    consumer_protocol_assignment,
    consumer_protocol_subscription,
)
from quorumlog.wire.codec.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from quorumlog.wire.codec.messages.consumer_protocol_subscription import (
    ConsumerProtocolSubscription,
)
from quorumlog.wire.codec.schemas import decode_message, encode_message

SUBSCRIPTION_VERSION: Final = 2
ASSIGNMENT_VERSION: Final = 0
STRANGER: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})
LOST: Final = STRANGER | {ErrorCode.ILLEGAL_GENERATION}


class Claim(NamedTuple):
    """The subscription of one member in its JoinGroup."""

    topics: frozenset[str]
    owned: Named
    generation_id: int


class Joining:
    """A Speaker. It joins, syncs, and sends heartbeats until it must join again."""

    def __init__(self, life: Life) -> None:
        self.is_member = False
        self._life: Final = life
        self._member_id = ""
        self._generation_id = -1
        self._assigned_generation_id = -1  # the generation of its last assignment
        self._must_join, self._must_sync = True, False
        self._assignments: Mapping[str, bytes] = {}
        self._said_subscription: Subscription | None = None
        self._counts: Mapping[str, int] | None = None  # of partitions, when it last assigned

    def question(self) -> Question:
        """Return the JoinGroup, SyncGroup or Heartbeat request that is due."""
        client = self._life.client
        if self._counts is not None and self._counts != self._topic_counts():
            self._must_join = True  # it leads, and has to assign anew
        if self._life.subscription != self._said_subscription:
            self._must_join = True
        if self._must_join and not client.surplus:
            self.is_member = False
        if self.is_member:
            return Question(self._heartbeat(), self._beaten, REQUEST_TIMEOUT_US)
        if self._must_sync and not self._must_join:
            return Question(self._sync(), self._synced, JOIN_TIMEOUT_US)
        return Question(self._join(), self._joined, JOIN_TIMEOUT_US)

    def unanswered(self) -> None:
        """Do nothing: the same request is due again."""

    def farewell(self, *, for_a_while: bool) -> Leave | None:
        """Return a LeaveGroup; None for a static member that comes back."""
        if for_a_while or not self._member_id:
            return None
        leaving = LeavingMember(
            member_id=self._member_id, group_instance_id=self._life.client.instance_id
        )
        return Leave(group_id=GROUP_ID, members=(leaving,))

    # --- joining ---

    def _join(self) -> Join:
        life = self._life
        self._said_subscription = life.subscription
        owned: dict[str, list[int]] = {}
        for topic, partition in sorted(self._owned()):
            owned.setdefault(topic, []).append(partition)
        subscription = ConsumerProtocolSubscription(
            topics=sorted(life.subscription.names),
            owned_partitions=[
                consumer_protocol_subscription.TopicPartition(topic=topic, partitions=partitions)
                for topic, partitions in owned.items()
            ],
            generation_id=self._assigned_generation_id,  # not a newer one (KAFKA-13891)
        )
        encoded = encode_message(subscription, SUBSCRIPTION_VERSION)
        metadata = SUBSCRIPTION_VERSION.to_bytes(VERSION_BYTES, "big") + b"".join(encoded)
        return Join(
            group_id=GROUP_ID,
            member_id=self._member_id,
            new_member_id=life.new_name(),
            group_instance_id=life.client.instance_id,
            session_timeout_ms=life.client.session_ms,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=(("cooperative-sticky", metadata),),
        )

    def _owned(self) -> Named:
        """Return its partitions by topic name, without those of deleted topics."""
        known = self._life.catalogue
        return frozenset(
            TopicPartition(name, one.partition)
            for one in self._life.client.has
            if (name := known.names[one.topic_id]) in known.by_name
            and known.by_name[name].topic_id == one.topic_id
        )

    def _joined(self, answered: Answered) -> None:
        result: JoinResult = answered.result
        if result.error_code is ErrorCode.NONE or result.error_code is ErrorCode.MEMBER_ID_REQUIRED:
            if result.member_id != self._member_id:
                self._member_id = result.member_id
                self._life.is_named(result.member_id)
            if result.error_code is ErrorCode.NONE:
                self._generation_id = result.generation_id
                self._must_join, self._must_sync = False, True
                self._lead(result)
            self._life.act_soon()
        else:
            self._failed(result.error_code)

    def _lead(self, result: JoinResult) -> None:
        self._assignments, self._counts = {}, None
        if result.members:
            self._counts = self._topic_counts()
            claims = {one.member_id: claim_of(one.metadata) for one in result.members}
            assigned = assign_cooperatively(claims, self._counts)
            self._assignments = {name: encode_assignment(has) for name, has in assigned.items()}
            if not result.skip_assignment:
                self._life.led = (result.generation_id, self._counts)

    def _topic_counts(self) -> dict[str, int]:
        by_name = self._life.catalogue.by_name
        return {name: one.partitions for name, one in sorted(by_name.items())}

    # --- syncing ---

    def _sync(self) -> Sync:
        return Sync(
            group_id=GROUP_ID,
            generation_id=self._generation_id,
            member_id=self._member_id,
            group_instance_id=self._life.client.instance_id,
            assignments=self._assignments,
        )

    def _synced(self, answered: Answered) -> None:
        result: SyncResult = answered.result
        if result.error_code is not ErrorCode.NONE:
            self._failed(result.error_code)
            return
        self._must_sync, self.is_member = False, True
        self._assigned_generation_id = self._generation_id
        self._life.syncs(answered, self._generation_id, assignment_of(result.assignment))
        if self._life.client.surplus or self._is_told_what_is_old():
            self._must_join = True  # once it has revoked the surplus
        else:
            self._life.rests(answered)
        self._life.act_soon()

    def _is_told_what_is_old(self) -> bool:
        """Return whether it leads, and its assignment is for older partition counts."""
        counts = self._counts
        return counts is not None and self._life.led != (self._generation_id, counts)

    def _failed(self, error_code: ErrorCode) -> None:
        """Handle an error of a JoinGroup or SyncGroup."""
        if error_code in LOST:
            self._lose(error_code)
        elif error_code in NOT_THERE:
            self._life.look_for_coordinator()
        else:
            self._must_join = True
        self._life.act_soon(after_us=BACKOFF_US)

    # --- a member ---

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(
            group_id=GROUP_ID,
            generation_id=self._generation_id,
            member_id=self._member_id,
            group_instance_id=self._life.client.instance_id,
        )

    def _beaten(self, answered: Answered) -> None:
        error_code: ErrorCode = answered.result
        if error_code is ErrorCode.NONE:
            if not self._life.client.surplus:
                self._life.rests(answered)
        elif error_code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._must_join = True
            if not self._life.client.surplus:
                self._life.act_soon()
        else:
            if error_code in LOST:
                self._lose(error_code)
            else:
                self._life.look_for_coordinator()
            self._life.act_soon(after_us=BACKOFF_US)

    def _lose(self, error_code: ErrorCode) -> None:
        self._life.loses_all()
        self.is_member, self._must_join, self._must_sync = False, True, False
        self._generation_id = self._assigned_generation_id = -1
        if error_code in STRANGER:
            self._member_id = ""
            self._life.is_named("")


def claim_of(metadata: bytes) -> Claim:
    """Decode the subscription in a JoinGroup."""
    version = int.from_bytes(metadata[:VERSION_BYTES], "big", signed=True)
    body = memoryview(metadata)[VERSION_BYTES:]
    message = decode_message(ConsumerProtocolSubscription, version, body)
    owned = frozenset(
        TopicPartition(topic.topic, partition)
        for topic in message.owned_partitions
        for partition in topic.partitions
    )
    return Claim(frozenset(message.topics), owned, message.generation_id)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode the assignment of a member."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            consumer_protocol_assignment.TopicPartition(topic=topic, partitions=indexes)
            for topic, indexes in by_topic.items()
        ]
    )
    encoded = encode_message(message, ASSIGNMENT_VERSION)
    return ASSIGNMENT_VERSION.to_bytes(VERSION_BYTES, "big") + b"".join(encoded)


def assign_cooperatively(
    claims: Mapping[str, Claim], counts: Mapping[str, int]
) -> dict[str, set[TopicPartition]]:
    """Assign the partitions; a moving one has no owner until its old owner has joined without it.

    Each topic is dealt out evenly among its subscribers, so each of them has a partition of a topic
    that has enough for all.
    """
    owners: dict[TopicPartition, str] = {}
    for member_id, claim in sorted(claims.items(), key=lambda item: item[1].generation_id):
        owners.update(dict.fromkeys(claim.owned, member_id))
    target: dict[str, set[TopicPartition]] = {member_id: set() for member_id in sorted(claims)}
    for topic, count in counts.items():
        wanting = [member_id for member_id in target if topic in claims[member_id].topics]
        every = [TopicPartition(topic, index) for index in range(count)]
        for member_id, partitions in _deal(every, wanting, owners).items():
            target[member_id] |= partitions
    return {
        member_id: {one for one in partitions if owners.get(one, member_id) == member_id}
        for member_id, partitions in target.items()
    }


def _deal(
    every: Sequence[TopicPartition],
    wanting: Sequence[str],
    owners: Mapping[TopicPartition, str],
) -> dict[str, set[TopicPartition]]:
    """Deal out the partitions of a topic. A member keeps its own, up to its share."""
    dealt: dict[str, set[TopicPartition]] = {member_id: set() for member_id in wanting}
    if not wanting:
        return dealt
    share, larger_shares = divmod(len(every), len(wanting))
    left = []
    for one in every:
        has = dealt.get(owners.get(one, ""))
        if has is None or len(has) > share or (len(has) == share and not larger_shares):
            left.append(one)
        else:
            larger_shares -= len(has) == share
            has.add(one)
    for one in left:
        min(dealt.values(), key=len).add(one)
    return dealt
