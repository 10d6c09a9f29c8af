"""The protocol of KIP-848: full heartbeats, short ones, and late copies of old ones."""

from collections import deque
from typing import Any, Final

from quorumlog.broker.groups.core.consumer.partitions import NO_PARTITIONS, Partitions
from quorumlog.broker.groups.core.consumer.requests import ConsumerHeartbeat, HeartbeatResult
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
    REQUEST_TIMEOUT_US,
)
from quorumlog.wire.codec.error_codes import ErrorCode

LEAVES: Final = -1
LEAVES_FOR_A_WHILE: Final = -2
FENCED: Final = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})
REMEMBERED: Final = 8  # requests that may be sent again


class Heartbeating:
    """A Speaker. It revokes partitions before it reports so; after an error it sends all fields."""

    def __init__(self, life: Life) -> None:
        self.is_member = False
        self._life: Final = life
        self._must_say_all = True
        self._said: Partitions | None = None  # the partitions in its last heartbeat
        self._said_subscription: Subscription | None = None
        self._previous_epoch = 0
        self._sent: Final = deque[ConsumerHeartbeat](maxlen=REMEMBERED)
        self._assignor: Final = life.rng.choice((None, None, "uniform", "range"))

    def question(self) -> Question:
        """Return a heartbeat with the changed fields, or with all of them."""
        client, subscription = self._life.client, self._life.subscription
        says_all = (
            self._must_say_all or client.epoch == 0 or subscription != self._said_subscription
        )
        fields: dict[str, Any] = {}
        if says_all:
            names, expression = self._said_subscription = subscription
            fields = {
                "rebalance_timeout_ms": REBALANCE_MS,
                "subscribed_topic_names": names,
                "subscribed_topic_regex": expression,
                "server_assignor": self._assignor,
            }
        if says_all or client.has != self._said:
            fields["owned"] = client.has
        self._said = client.has
        request = self._heartbeat(client.epoch, **fields)
        self._sent.append(request)
        return Question(request, self._answered, REQUEST_TIMEOUT_US)

    def old_request(self) -> ConsumerHeartbeat | None:
        """Return a request older than the last two epochs, to send as a late copy."""
        old = [one for one in self._sent if 0 < one.member_epoch < self._previous_epoch]
        return self._life.rng.choice(old) if old else None

    def unanswered(self) -> None:
        """Send all fields next: the coordinator may not have received the last ones."""
        self._must_say_all = True

    def farewell(self, *, for_a_while: bool) -> ConsumerHeartbeat:
        """Return the heartbeat that leaves the group, or leaves it for a while."""
        return self._heartbeat(LEAVES_FOR_A_WHILE if for_a_while else LEAVES)

    def _heartbeat(self, member_epoch: int, **fields: Any) -> ConsumerHeartbeat:
        client = self._life.client
        return ConsumerHeartbeat(
            group_id=GROUP_ID,
            member_id=client.member_id,
            member_epoch=member_epoch,
            instance_id=client.instance_id,
            **fields,
        )

    def _answered(self, answered: Answered) -> None:
        result: HeartbeatResult = answered.result
        life, client = self._life, self._life.client
        if result.error_code is ErrorCode.NONE:
            self._must_say_all, self.is_member = False, True
            if result.member_epoch != client.epoch:
                self._previous_epoch = client.epoch
            before = client.told
            life.takes(answered, result.member_epoch, result.assignment)
            if self._said is not None and self._said <= client.told:
                life.rests(answered)  # the coordinator has seen that it has nothing to revoke
            if client.told != before:
                life.act_soon()  # to report the revocation, or to fetch the offsets
            return
        self._must_say_all = True
        if result.error_code in FENCED:
            self._begin_anew()
        elif result.error_code is ErrorCode.FENCED_INSTANCE_ID:
            life.is_named(life.new_name())
            self._begin_anew()
        elif result.error_code in NOT_THERE:
            life.look_for_coordinator()
        life.act_soon(after_us=BACKOFF_US)

    def _begin_anew(self) -> None:
        self._life.loses_all()
        self.is_member, self._said, self._previous_epoch = False, NO_PARTITIONS, 0
        self._sent.clear()
