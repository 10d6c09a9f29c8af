"""A model of KIP-848: clients of one consumer group, and their required responses, in steps.

`tests/property/test_consumer_groups.py` runs it and lists the invariants.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quorumlog.broker.groups.core.consumer.group import ConsumerGroup
from quorumlog.broker.groups.core.consumer.partitions import NO_PARTITIONS, Partitions
from quorumlog.broker.groups.core.consumer.requests import ConsumerHeartbeat, HeartbeatResult
from quorumlog.broker.groups.core.consumer.states import ConsumerGroupState
from quorumlog.broker.groups.core.requests import (
    CommitOffsets,
    CommittedOffset,
    CommitTransactionalOffsets,
)
from quorumlog.broker.groups.core.rules import GROUP_RULES, GroupRules
from quorumlog.invariants import some
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.groups.consumer.coordination import (
    SETTINGS,
    ConsumerCoordination,
    TopicsOfTest,
    describe_all,
    heartbeat,
)
from tests.support.groups.coordination import T0
from tests.support.groups.transactions import outcome, verify

REBALANCE_MS = 1500
SUBSCRIPTIONS: tuple[dict[str, Any], ...] = (
    {"subscribed_topic_names": ("t",), "subscribed_topic_regex": ""},
    {"subscribed_topic_names": ("t", "u"), "subscribed_topic_regex": ""},
    {"subscribed_topic_names": (), "subscribed_topic_regex": "[tu]"},
    {"subscribed_topic_names": ("u",), "subscribed_topic_regex": "v.*"},
)
QUIET_ROUNDS = 4  # one to make the target, one to give up, one to take, and one more in a chain


@dataclass
class Client:
    """The state of one client. `has`: its partitions; `told`: its last assignment."""

    member_id: str
    instance_id: str | None
    subscription: dict[str, Any]
    is_stubborn: bool = False  # it never revokes partitions
    epoch: int = 0
    previous_epoch: int = 0
    has: Partitions = NO_PARTITIONS
    told: Partitions = NO_PARTITIONS
    must_say_all: bool = True
    asked: int | None = None
    heard_ms: int = 0  # the time of its last request to the coordinator
    dirty_ms: int | None = None  # its first request since it had nothing to give up
    is_away: bool = False
    left_by: int = 0  # the request, if it left for good
    sent: list[ConsumerHeartbeat] = field(default_factory=list, repr=False)

    def may_be_removed(self, now_ms: int) -> bool:
        is_silent = now_ms >= self.heard_ms + SETTINGS.group_consumer_session_timeout_ms
        return is_silent or (self.dirty_ms is not None and now_ms >= self.dirty_ms + REBALANCE_MS)

    def start_anew(self) -> None:
        self.epoch = self.previous_epoch = 0
        self.has = self.told = NO_PARTITIONS
        self.dirty_ms = None
        self.must_say_all = True


class OneConsumerGroup(RuleBasedStateMachine):
    obeyed: ClassVar[GroupRules] = GROUP_RULES

    def __init__(self) -> None:
        super().__init__()
        topics = TopicsOfTest()
        topics.set("t", 3)
        self.groups = ConsumerCoordination(topics, rules=self.obeyed)
        self.clients: list[Client] = []
        self.gone: list[Client] = []
        self.asked: dict[int, tuple[Client, ConsumerHeartbeat, int]] = {}
        self.names = 0

    @property
    def now_ms(self) -> int:
        return self.groups.now_ms

    # --- Requests and responses of clients ---

    def ask(self, client: Client, request: ConsumerHeartbeat) -> None:
        client.sent.append(request)
        if client.dirty_ms is None:
            client.dirty_ms = self.now_ms
        request_id = self.groups.last_request_id + 1
        client.asked = request_id
        self.asked[request_id] = (client, request, self.now_ms)
        if request.owned is not None:
            client.has &= request.owned  # its request revokes the rest
        for other in self.gone if request.member_epoch == 0 else ():
            if other.is_away and other.instance_id == client.instance_id:
                other.has = NO_PARTITIONS  # its place is taken
        self.groups.ask(request)
        self.hear()

    def hear(self) -> None:
        for request_id in sorted(self.asked.keys() & self.groups.replies.keys()):
            client, request, sent_ms = self.asked.pop(request_id)
            result = self.groups.replies[request_id]
            if result.error_code is ErrorCode.NONE and request.member_epoch >= 0:
                client.heard_ms = max(client.heard_ms, sent_ms)
            if client.asked == request_id:
                client.asked = None
                self.hear_answer(client, request, result)

    def hear_answer(
        self, client: Client, request: ConsumerHeartbeat, result: HeartbeatResult
    ) -> None:
        match result.error_code:
            case ErrorCode.NONE if request.member_epoch >= 0:
                assert result.member_epoch >= client.epoch, "b: the epoch of a client fell"
                if result.member_epoch != client.epoch:
                    client.previous_epoch, client.epoch = client.epoch, result.member_epoch
                client.must_say_all = False
                if result.assignment is not None:
                    self.take(client, result.assignment)
                if client.has <= client.told:
                    client.dirty_ms = None
            case ErrorCode.FENCED_MEMBER_EPOCH | ErrorCode.UNKNOWN_MEMBER_ID:
                client.start_anew()
            case _:
                client.must_say_all = True

    def take(self, client: Client, assignment: Partitions) -> None:
        for other in (*self.clients, *self.gone):
            if other is client or other.may_be_removed(self.now_ms):
                continue
            both = assignment & other.has
            assert not both, f"a: {client.member_id} and {other.member_id} have {both}"
        client.told = assignment
        client.has |= assignment

    def beat(self, client: Client, *, says_all: bool = False, gives_up: bool = True) -> None:
        """Send the heartbeat that the client owes; an answer still awaited is given up."""
        if client.asked is not None:
            client.must_say_all = True
        if gives_up and not client.is_stubborn:
            client.has &= client.told
            owned: Partitions | None = client.has
        else:
            owned = None if not client.must_say_all else client.has
        fields: dict[str, Any] = {"owned": owned, "instance_id": client.instance_id}
        if client.must_say_all or says_all or client.epoch == 0:
            fields |= {"owned": client.has, "rebalance_timeout_ms": REBALANCE_MS}
            fields |= client.subscription
        self.ask(client, heartbeat(client.member_id, client.epoch, **fields))

    # --- Steps ---

    @rule(
        instance_id=st.sampled_from((None, None, "i", "j", "k")),
        subscription=st.sampled_from(SUBSCRIPTIONS),
        is_stubborn=st.sampled_from((False,) * 5 + (True,)),
    )
    def client_starts(
        self, instance_id: str | None, subscription: dict[str, Any], is_stubborn: bool
    ) -> None:
        instances = {client.instance_id for client in self.clients} - {None}
        if len(self.clients) < 5 and instance_id not in instances:
            self.start(instance_id, subscription, is_stubborn)

    def start(
        self, instance_id: str | None, subscription: dict[str, Any], is_stubborn: bool
    ) -> None:
        self.names += 1
        client = Client(f"m{self.names}", instance_id, subscription, is_stubborn)
        self.clients.append(client)
        self.beat(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), says_all=st.booleans(), gives_up=st.sampled_from((True, True, False)))
    def client_beats(self, data: st.DataObject, says_all: bool, gives_up: bool) -> None:
        self.beat(data.draw(st.sampled_from(self.clients)), says_all=says_all, gives_up=gives_up)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def client_beats_twice(self, data: st.DataObject) -> None:
        """It revokes at the first response, and sends all fields again."""
        client = data.draw(st.sampled_from(self.clients))
        self.beat(client)
        self.groups.commit_writes()
        if client.asked is None:  # the answer was there: it is lost
            lost = self.beat_unheard(client)
            self.groups.commit_writes()
            self.asked.pop(lost, None)
        self.beat(client)

    def beat_unheard(self, client: Client) -> int:
        """Send a heartbeat whose answer does not arrive."""
        request_id = self.groups.last_request_id + 1
        fields: dict[str, Any] = {"owned": client.has, "instance_id": client.instance_id}
        if client.epoch == 0:
            fields |= {"owned": NO_PARTITIONS, "rebalance_timeout_ms": REBALANCE_MS}
            fields |= client.subscription
        if client.dirty_ms is None:
            client.dirty_ms = self.now_ms
        self.groups.ask(heartbeat(client.member_id, client.epoch, **fields))
        client.must_say_all = True
        return request_id

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), commits=st.sampled_from((True, True, False)), gives_up=st.booleans())
    def all_beat(self, data: st.DataObject, commits: bool, gives_up: bool) -> None:
        """Without this, few schedules would bring a group to rest."""
        for client in data.draw(st.permutations(self.clients)):
            self.beat(client, gives_up=gives_up)
            if commits:
                self.groups.commit_writes()
                self.hear()

    @precondition(lambda self: self.clients or self.gone)
    @rule(data=st.data(), behind=st.sampled_from((0, 1)), in_transaction=st.booleans())
    def client_commits(self, data: st.DataObject, behind: int, in_transaction: bool) -> None:
        """With its epoch, or an older one and a partition that it has not had since, or from afar.

        A member that owns the partition since an older epoch may commit with that (KIP-1251).
        """
        everybody = [one for one in (*self.clients, *self.gone) if one.epoch > behind]
        if not everybody:
            return
        client = data.draw(st.sampled_from(everybody))
        epoch = client.epoch - behind
        fields: dict[str, Any] = {
            "group_id": "g",
            "member_id": client.member_id,
            "generation_id": epoch,
            "offsets": {T0: CommittedOffset(offset=1)},
        }
        if in_transaction:
            fields |= {"transactional_id": "x", "producer_id": 7, "producer_epoch": 0}
            request_id = self.groups.ask(CommitTransactionalOffsets(**fields, adds=False))
            verify(self.groups)
        else:
            request_id = self.groups.ask(CommitOffsets(**fields))
        self.groups.commit_writes()
        self.hear()
        result = self.groups.replies.get(client.left_by)
        has_left = result is not None and result.error_code is ErrorCode.NONE
        is_strange = behind > 0 and not any(
            one.topic_id[2:3] == b"t" and one.partition == 0 for one in client.has | client.told
        )
        is_granted = outcome(self.groups, request_id) is ErrorCode.NONE
        assert not (is_granted and (is_strange or has_left)), "e: who may not commits"

    @rule()
    def old_requests_arrive_again(self) -> None:
        """Those from before a client's last two epochs, while there is something to give up."""
        if len(self.clients) < 5:
            self.start(None, SUBSCRIPTIONS[1], is_stubborn=False)
        self.everybody_follows_the_protocol(gives_up=False)
        for client in self.clients:
            old = [one for one in client.sent if 0 < one.member_epoch < client.previous_epoch]
            for request in old[-5:]:
                self.groups.ask(request)
        self.everybody_follows_the_protocol(gives_up=False)

    @precondition(lambda self: self.clients)
    @rule()
    def epochs_pass(self) -> None:
        """A topic comes and grows, and everybody follows."""
        for partitions in (0, 3, 4):
            self.groups.set_topic("u", partitions)
            for _ in range(2):
                self.everybody_follows_the_protocol()

    @precondition(lambda self: any(client.instance_id for client in self.clients))
    @rule(data=st.data())
    def static_client_restarts(self, data: st.DataObject) -> None:
        """It leaves for a while; the others go on meanwhile."""
        static = [client for client in self.clients if client.instance_id is not None]
        old = data.draw(st.sampled_from(static))
        self.end(old, "goes")
        for _ in range(2):
            self.everybody_follows_the_protocol()
        self.start(old.instance_id, old.subscription, is_stubborn=False)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), subscription=st.sampled_from(SUBSCRIPTIONS))
    def client_subscribes_anew(self, data: st.DataObject, subscription: dict[str, Any]) -> None:
        client = data.draw(st.sampled_from(self.clients))
        client.subscription = subscription
        client.must_say_all = True
        self.beat(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), how=st.sampled_from(("leaves", "goes", "goes", "dies")))
    def client_ends(self, data: st.DataObject, how: str) -> None:
        self.end(data.draw(st.sampled_from(self.clients)), how)

    def end(self, client: Client, how: str) -> None:
        self.clients.remove(client)
        client.asked = None
        self.gone.append(client)
        if how != "dies" and client.epoch > 0:
            is_static = client.instance_id is not None
            epoch = -2 if how == "goes" and is_static else -1
            client.is_away = epoch == -2
            group = self.groups.consumer.groups.get("g")
            member = None if group is None else group.members.get(client.member_id)
            keeps = client.is_away and member is not None  # it has nothing, but a place
            client.has &= member.current.assigned if member and keeps else NO_PARTITIONS
            leaves = heartbeat(client.member_id, epoch, instance_id=client.instance_id)
            request_id = self.groups.ask(leaves)
            client.left_by = 0 if client.is_away else request_id
            self.hear()

    @rule(name=st.sampled_from(("t", "u", "v1", "v2")), grows=st.sampled_from((True, True, False)))
    def topic_changes(self, name: str, grows: bool) -> None:
        known = self.groups.topics.by_name.get(name)
        if grows and (known is None or known.partitions < 5):
            self.groups.set_topic(name, 2 if known is None else known.partitions + 1)
        elif not grows and known is not None:
            self.groups.set_topic(name, 0)

    @rule(elapsed_ms=st.sampled_from((50, 300, 300, 1000)))
    def time_passes(self, elapsed_ms: int) -> None:
        self.groups.tick(elapsed_ms)
        self.hear()

    @precondition(lambda self: self.groups.writes)
    @rule()
    def write_is_committed(self) -> None:
        self.groups.commit_write()
        self.hear()

    @precondition(lambda self: self.groups.writes)
    @rule()
    def write_is_refused(self) -> None:
        self.groups.fail_write()
        self.note_sessions()
        self.hear()

    @rule(survives=st.booleans())
    def coordinator_fails_over(self, survives: bool) -> None:
        """The write under way may be committed; its response is lost."""
        last_request_id = self.groups.last_request_id
        self.groups.batches += [write.records for write in self.groups.writes[:survives]]
        self.groups = self.groups.reloaded()
        self.groups.last_request_id = last_request_id
        self.asked.clear()
        for client in self.clients:
            if client.asked is not None:
                client.asked, client.must_say_all = None, True
        self.note_sessions()

    def note_sessions(self) -> None:
        """Every member has a whole session to find the coordinator."""
        group = self.groups.consumer.groups.get("g")
        for client in (*self.clients, *self.gone):
            if group is not None and client.member_id in group.members:
                client.heard_ms = self.now_ms

    # --- Invariants ---

    @invariant()
    def what_is_served_is_what_a_replay_gives(self) -> None:
        if not self.groups.writes:
            coordinator = self.groups.consumer
            group = coordinator.groups.get("g")
            values = coordinator.committed.of("g")
            assert (group is None) == (not values), "c"
            if group is not None:
                replayed = ConsumerGroup.from_values("g", values)
                assert describe_all(group) == describe_all(replayed), "c"

    def teardown(self) -> None:
        since_ms = self.now_ms
        for _ in range(8):  # those that are gone or stubborn are removed
            self.everybody_follows_the_protocol()
            self.groups.tick(300)
        for client in self.clients:
            is_stuck = client.dirty_ms is not None and client.dirty_ms < since_ms + 600
            assert not is_stuck, "d: it gave up nothing for 1.8 s, and was not removed"
            client.is_stubborn = False
        self.check_rest()
        known = self.groups.topics.by_name.get("t")
        self.groups.set_topic("t", 2 if known is None else known.partitions + 1)
        self.check_rest()

    def check_rest(self) -> None:
        for _ in range(QUIET_ROUNDS):
            self.everybody_follows_the_protocol()
        self.groups.commit_writes()
        group = self.groups.consumer.groups.get("g")
        if not self.clients:
            assert group is None or group.state is ConsumerGroupState.EMPTY, "d"
            return
        assert group is not None
        assert group.state is ConsumerGroupState.STABLE, f"d: {group.state}"
        had = [one for client in self.clients for one in client.has]
        assert sorted(had) == sorted(self.subscribed()), "d: all is had once"
        for client in self.clients:
            assert client.has == client.told, "d"
            self.beat(client)
        assert not self.groups.writes, "d: it rests"

    def everybody_follows_the_protocol(self, *, gives_up: bool = True) -> None:
        for client in self.clients:
            self.beat(client, gives_up=gives_up)
            self.groups.commit_writes()
            self.hear()

    def subscribed(self) -> Partitions:
        topics = self.groups.topics
        wanted: set[str] = set()
        for client in self.clients:
            wanted.update(client.subscription["subscribed_topic_names"])
            if client.subscription["subscribed_topic_regex"]:
                matching = topics.matching(client.subscription["subscribed_topic_regex"])
                wanted |= some(matching, "so few names are tried at once")
        every = NO_PARTITIONS
        for name in wanted & topics.by_name.keys():
            every |= topics.some(name, *range(topics.by_name[name].partitions))
        return every
