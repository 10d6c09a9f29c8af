"""One group of the consumer protocol under any schedule; planted bugs that must be found.

The model knows KIP-848 and what clients are told. A client *has* a partition from when it is told
to have it until it says that it has it no longer, or until the coordinator may take it away: when
its session or its rebalance is over by the model's own clock. What must hold:
  a. No client is told to have what another one has.
  b. The epoch that a client is told never falls; that of the group rises in the log.
  c. What is served is what a replay of the log gives, whenever nothing is under way.
  d. A quiet group comes to rest within a bounded number of heartbeats: all that is subscribed to is
     had by one client each, and nothing is written any more.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from quorumlog.broker.groups.core.consumer import admission, reconciliation
from quorumlog.broker.groups.core.consumer import assignors as assignors_module
from quorumlog.broker.groups.core.consumer.changes import Changes
from quorumlog.broker.groups.core.consumer.coordinator import ConsumerGroupCoordinator
from quorumlog.broker.groups.core.consumer.deadlines import Deadlines
from quorumlog.broker.groups.core.consumer.group import ConsumerGroup, ConsumerMember
from quorumlog.broker.groups.core.consumer.heartbeats import Heartbeats
from quorumlog.broker.groups.core.consumer.membership import Membership
from quorumlog.broker.groups.core.consumer.partitions import NO_PARTITIONS, Partitions
from quorumlog.broker.groups.core.consumer.records import RecordKind, Value
from quorumlog.broker.groups.core.consumer.requests import ConsumerHeartbeat, HeartbeatResult
from quorumlog.broker.groups.core.consumer.states import ConsumerGroupState
from quorumlog.broker.groups.core.consumer.topics import Topics
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.groups.consumer.coordination import (
    SETTINGS,
    ConsumerCoordination,
    TopicsOfTest,
    describe_all,
    heartbeat,
)
from tests.support.sizes import examples

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
    """What one client knows. `has`: what it consumes; `told`: what it was told to have at last."""

    member_id: str
    instance_id: str | None
    subscription: dict[str, Any]
    is_stubborn: bool = False  # it gives nothing up
    epoch: int = 0
    previous_epoch: int = 0
    has: Partitions = NO_PARTITIONS
    told: Partitions = NO_PARTITIONS
    must_say_all: bool = True
    asked: int | None = None
    heard_ms: int = 0  # when the coordinator last heard from it
    dirty_ms: int | None = None  # its first request since it had nothing to give up
    is_away: bool = False
    sent: list[ConsumerHeartbeat] = field(default_factory=list, repr=False)

    def may_be_removed(self, now_ms: int) -> bool:
        is_silent = now_ms >= self.heard_ms + SETTINGS.session_timeout_ms
        return is_silent or (self.dirty_ms is not None and now_ms >= self.dirty_ms + REBALANCE_MS)

    def start_anew(self) -> None:
        self.epoch = self.previous_epoch = 0
        self.has = self.told = NO_PARTITIONS
        self.dirty_ms = None
        self.must_say_all = True


class OneConsumerGroup(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        topics = TopicsOfTest()
        topics.set("t", 3)
        self.groups = ConsumerCoordination(topics)
        self.clients: list[Client] = []
        self.gone: list[Client] = []
        self.asked: dict[int, tuple[Client, ConsumerHeartbeat, int]] = {}
        self.names = 0

    @property
    def now_ms(self) -> int:
        return self.groups.now_ms

    # --- What clients say and hear ---

    def ask(self, client: Client, request: ConsumerHeartbeat) -> None:
        client.sent.append(request)
        if client.dirty_ms is None:
            client.dirty_ms = self.now_ms
        request_id = self.groups.last_request_id + 1
        client.asked = request_id
        self.asked[request_id] = (client, request, self.now_ms)
        if request.owned is not None:
            client.has &= request.owned  # it gives up the rest by saying so
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

    # --- What may happen ---

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
        """It gives up on the first answer, and says all again."""
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
        """It says that it will be back; the others go on meanwhile."""
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
            group = self.groups.coordinator.groups.get("g")
            member = None if group is None else group.members.get(client.member_id)
            keeps = client.is_away and member is not None  # it has nothing, but a place
            client.has &= member.current.assigned if member and keeps else NO_PARTITIONS
            self.groups.ask(heartbeat(client.member_id, epoch, instance_id=client.instance_id))
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
        """Perhaps the write under way made it; nobody was told."""
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
        group = self.groups.coordinator.groups.get("g")
        for client in (*self.clients, *self.gone):
            if group is not None and client.member_id in group.members:
                client.heard_ms = self.now_ms

    # --- What must hold ---

    @invariant()
    def what_is_served_is_what_a_replay_gives(self) -> None:
        if not self.groups.writes:
            coordinator = self.groups.coordinator
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
        group = self.groups.coordinator.groups.get("g")
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
                wanted |= topics.matching(client.subscription["subscribed_topic_regex"])
        every = NO_PARTITIONS
        for name in wanted & topics.by_name.keys():
            every |= topics.some(name, *range(topics.by_name[name].partitions))
        return every


EXAMPLES = examples(80, stateful_step_count=40)
UNTIL_FOUND = settings(EXAMPLES, max_examples=200, phases=[Phase.generate])


def test_the_promises_hold_under_any_schedule() -> None:
    run_machine(OneConsumerGroup, settings=EXAMPLES)


# --- Planted bugs ---

ENQUEUE = ConsumerGroupCoordinator._enqueue
REBUILD = ConsumerGroupCoordinator._rebuild
WRITE = Changes.write
REMOVE = Membership.remove
UNIFORM = assignors_module.assign_uniform
Patch = Callable[[pytest.MonkeyPatch], None]


def _silence_acknowledges(patch: pytest.MonkeyPatch) -> None:
    def may_have(reported: Partitions | None, revoked: Partitions) -> bool:
        return reported is not None and not reported.isdisjoint(revoked)

    patch.setattr(reconciliation, "_may_have", may_have)


def _revokes_without_being_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconciliation, "_may_have", lambda reported, revoked: False)


def _believes_any_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admission, "_check_member_epoch", lambda member, request: None)


def _answers_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    def enqueue(self: ConsumerGroupCoordinator, changes: Changes, answer: Any) -> None:
        if answer is not None:
            self._reply(answer.request_id, answer.result)
        ENQUEUE(self, changes, None)

    patch.setattr(ConsumerGroupCoordinator, "_enqueue", enqueue)


def _keeps_what_was_refused(patch: pytest.MonkeyPatch) -> None:
    def rebuild(self: ConsumerGroupCoordinator, group_id: str, now_ms: int) -> None:
        if group_id not in self.groups:
            REBUILD(self, group_id, now_ms)

    patch.setattr(ConsumerGroupCoordinator, "_rebuild", rebuild)


def _drops_what_waits_behind_a_write(patch: pytest.MonkeyPatch) -> None:
    def write_on(self: ConsumerGroupCoordinator, group_id: str, writes: Any) -> None:
        if writes.under_way is not None:
            writes.next.records.clear()
        WRITE_ON(self, group_id, writes)

    patch.setattr(ConsumerGroupCoordinator, "_write_on", write_on)


WRITE_ON = ConsumerGroupCoordinator._write_on


def _writes_no_target(patch: pytest.MonkeyPatch) -> None:
    def write(self: Changes, kind: RecordKind, value: Value | None, name: str = "") -> None:
        WRITE(self, kind, value, name)
        if kind is RecordKind.TARGET_MEMBER:
            self.records.pop()

    patch.setattr(Changes, "write", write)


def _gives_no_session_when_it_loads(patch: pytest.MonkeyPatch) -> None:
    def rebuild(self: ConsumerGroupCoordinator, group_id: str, now_ms: int) -> None:
        REBUILD(self, group_id, now_ms - SETTINGS.session_timeout_ms + 1)

    patch.setattr(ConsumerGroupCoordinator, "_rebuild", rebuild)


def _sessions_never_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Deadlines, "pop_due", lambda self, now_ms: None)
    patch.setattr(ConsumerGroupCoordinator, "next_deadline_ms", 1 << 62)


def _rebalances_never_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        ConsumerGroupCoordinator, "_begin_rebalance", lambda self, group, member_id, now_ms: None
    )


def _rebalances_end_at_once(patch: pytest.MonkeyPatch) -> None:
    def begin(
        self: ConsumerGroupCoordinator, group: ConsumerGroup, member_id: str, now_ms: int
    ) -> None:
        BEGIN_REBALANCE(self, group, member_id, now_ms - REBALANCE_MS + 10)

    patch.setattr(ConsumerGroupCoordinator, "_begin_rebalance", begin)


BEGIN_REBALANCE = ConsumerGroupCoordinator._begin_rebalance


def _does_not_look_at_topics(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumerGroupCoordinator, "_handle_topics_changed", lambda self, names: None)


def _sees_no_growth(patch: pytest.MonkeyPatch) -> None:
    def metadata_hash(self: Topics, names: Any) -> int:
        return sum(len(name) for name in {*names} & self.by_name.keys())

    patch.setattr(Topics, "metadata_hash", metadata_hash)


def _a_departure_begins_no_epoch(patch: pytest.MonkeyPatch) -> None:
    def remove(self: Membership, changes: Changes, member_ids: Any, now_ms: int) -> None:
        for member_id in member_ids:
            self._erase(changes, member_id)

    patch.setattr(Membership, "remove", remove)


def _a_place_is_not_kept(patch: pytest.MonkeyPatch) -> None:
    def leave(self: Membership, changes: Changes, member: ConsumerMember) -> None:
        REMOVE(self, changes, (member.member_id,), 0)

    patch.setattr(Membership, "leave_for_a_while", leave)


def _assigns_twice(patch: pytest.MonkeyPatch) -> None:
    def assign(members: Any, counts: Any) -> assignors_module.Assignment:
        found = UNIFORM(members, counts)
        names = sorted(found)
        return {**found, names[0]: found[names[0]] | found[names[-1]]}

    patch.setitem(assignors_module.ASSIGNORS, "uniform", assign)


def _tells_nothing_again(patch: pytest.MonkeyPatch) -> None:
    def answer(
        self: Heartbeats, group: ConsumerGroup, member_id: str, request: Any, told: Any
    ) -> HeartbeatResult:
        current = group.members[member_id].current
        is_new = told is None or told.assigned != current.assigned
        return HeartbeatResult(
            error_code=ErrorCode.NONE,
            member_id=member_id,
            member_epoch=current.member_epoch,
            assignment=current.assigned if is_new else None,
        )

    patch.setattr(Heartbeats, "_answer", answer)


MUTANTS: dict[str, Patch] = {
    "silence acknowledges a revocation": _silence_acknowledges,
    "revokes without being told": _revokes_without_being_told,
    "believes any epoch": _believes_any_epoch,
    "answers before the commit": _answers_before_the_commit,
    "keeps what was refused": _keeps_what_was_refused,
    "drops what waits behind a write": _drops_what_waits_behind_a_write,
    "writes no target": _writes_no_target,
    "gives no session when it loads": _gives_no_session_when_it_loads,
    "sessions never end": _sessions_never_end,
    "rebalances never end": _rebalances_never_end,
    "rebalances end at once": _rebalances_end_at_once,
    "does not look at topics": _does_not_look_at_topics,
    "sees no growth": _sees_no_growth,
    "a departure begins no epoch": _a_departure_begins_no_epoch,
    "a place is not kept": _a_place_is_not_kept,
    "assigns twice": _assigns_twice,
    "tells nothing again": _tells_nothing_again,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises((AssertionError, InvariantViolation)):
        run_machine(OneConsumerGroup, settings=UNTIL_FOUND)
