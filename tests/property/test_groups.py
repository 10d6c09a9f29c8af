"""One group under any schedule of members, failures and failovers; mutants that must be found.

Watched from outside, by what clients are told:
  a. What is durable is what replaying the log gives, always.
  b. One generation, one assignment: all that members are ever told of it is one leader's.
  c. An acknowledged offset is in the log, so it survives every failover.
  d. Who belongs to an older generation, or was replaced, commits nothing.
  e. Once clients fall silent, the group empties.
"""

from dataclasses import dataclass

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from quorumlog.broker.groups.core import events
from quorumlog.broker.groups.core.classic import ClassicProtocol
from quorumlog.broker.groups.core.group import Group, GroupState
from quorumlog.broker.groups.core.group_outbox import GroupOutbox, WriteDone
from quorumlog.broker.groups.core.joining import Joining
from quorumlog.broker.groups.core.offsets import CommittedState
from quorumlog.broker.groups.core.rebalance import Rebalance
from quorumlog.broker.groups.core.records import LogRecord, OffsetRecord
from quorumlog.broker.groups.core.requests import (
    CommitOffsets,
    CommitResult,
    CommittedOffset,
    DeleteGroup,
    DeleteOffsets,
    Join,
    JoinResult,
    Leave,
    LeavingMember,
    Request,
    Sync,
    SyncResult,
)
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.groups.coordination import T0, Coordination, beat, commit, join, leave
from tests.support.sizes import examples, tries


@dataclass
class Client:
    """What one client believes."""

    member_id: str = ""
    instance: str | None = None
    generation_id: int = -1
    members: tuple[str, ...] = ()  # if it leads


class OneGroup(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.group = Coordination()
        self.clients: list[Client] = []
        self.asked: dict[int, tuple[Request, Client]] = {}
        self.stale: dict[int, Request] = {}  # commits that must not be acknowledged
        self.told: dict[int, str] = {}  # generation -> tag of its assignment
        self.replaced: set[str] = set()  # member ids
        self.newest_generation = 0
        self.names = self.tags = self.offsets = 0

    def ask(self, request: Request, client: Client) -> None:
        self.asked[self.group.last_request_id + 1] = (request, client)
        self.group.ask(request)
        self.hear()

    def hear(self) -> None:
        for request_id in sorted(self.asked.keys() & self.group.replies.keys()):
            request, client = self.asked.pop(request_id)
            match self.group.replies[request_id]:
                case JoinResult() as result:
                    self.hear_join(client, result)
                case SyncResult(error_code=ErrorCode.NONE, assignment=assignment):
                    assert isinstance(request, Sync)
                    tag = assignment.decode().partition(":")[0]
                    if tag:
                        known = self.told.setdefault(request.generation_id, tag)
                        assert known == tag, f"b: generation {request.generation_id}"
                case CommitResult(partitions=partitions):
                    assert isinstance(request, CommitOffsets)
                    if partitions.get(T0) is ErrorCode.NONE:
                        self.hear_commit(request_id, request)
                case _:  # an outcome that nothing follows from
                    pass
        if "g" not in self.group.coordinator.groups:
            self.told.clear()  # if the group comes again, it starts at generation 1
            self.newest_generation = 0

    def hear_join(self, client: Client, result: JoinResult) -> None:
        if result.error_code in {ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED}:
            if client.instance is not None and result.member_id != client.member_id:
                others = {one.member_id for one in self.clients if one.instance == client.instance}
                self.replaced |= others - {result.member_id, ""}
            client.member_id = result.member_id
        if result.error_code is ErrorCode.NONE:
            client.generation_id = result.generation_id
            client.members = tuple(one.member_id for one in result.members)
            self.newest_generation = max(self.newest_generation, result.generation_id)
        elif result.error_code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}:
            client.generation_id = -1

    def hear_commit(self, request_id: int, request: CommitOffsets) -> None:
        assert request_id not in self.stale, f"d: {request}"
        wanted = request.offsets[T0].offset
        logged = [
            record.committed.offset
            for record in self.group.log
            if isinstance(record, OffsetRecord) and record.committed is not None
        ]
        assert wanted in logged, f"c: {wanted}"

    @rule(instance=st.sampled_from((None, None, "i", "j")), timeout_ms=st.sampled_from((300, 2000)))
    def client_starts(self, instance: str | None, timeout_ms: int) -> None:
        if len(self.clients) < 6:
            self.clients.append(Client(instance=instance))
            self.join(self.clients[-1], timeout_ms)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), timeout_ms=st.sampled_from((300, 2000)))
    def client_joins_again(self, data: st.DataObject, timeout_ms: int) -> None:
        self.join(data.draw(st.sampled_from(self.clients)), timeout_ms)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def client_restarts(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.clients) - 1))
        self.clients[index] = Client(instance=self.clients[index].instance)
        self.join(self.clients[index], 2000)

    @precondition(lambda self: self.clients)
    @rule(commits=st.sampled_from((True, True, False)))
    def everybody_follows_the_protocol(self, commits: bool) -> None:
        """Without this, few schedules would reach a Stable group."""
        for client in self.clients * 2:  # who is new is told its member id first
            if client.generation_id < self.newest_generation or self.newest_generation == 0:
                self.join(client, 2000)
        self.group.tick(201)
        self.hear()
        for client in self.clients:
            self.sync(client)
        if commits:
            self.group.commit_writes()
            self.hear()

    def join(self, client: Client, timeout_ms: int) -> None:
        self.names += 1
        request = join(
            client.member_id,
            new_member_id=f"m{self.names}",
            group_instance_id=client.instance,
            rebalance_timeout_ms=timeout_ms,
            requires_known_member_id=True,
        )
        self.ask(request, client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def client_syncs(self, data: st.DataObject) -> None:
        self.sync(data.draw(st.sampled_from(self.clients)))

    def sync(self, client: Client) -> None:
        self.tags += 1
        assignments = {name: f"{self.tags}:{name}".encode() for name in client.members}
        request = Sync(
            group_id="g",
            member_id=client.member_id,
            generation_id=client.generation_id,
            group_instance_id=client.instance,
            assignments=assignments,
        )
        self.ask(request, client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def client_beats(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        self.ask(beat(client.member_id, client.generation_id, client.instance), client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), names_instance=st.booleans(), behind=st.sampled_from((0, 0, 0, 1)))
    def client_commits(self, data: st.DataObject, names_instance: bool, behind: int) -> None:
        """Perhaps with the generation before: the client was slow, or its request was."""
        client = data.draw(st.sampled_from(self.clients))
        generation_id = max(client.generation_id - behind, -1)
        self.offsets += 1
        request = CommitOffsets(
            group_id="g",
            member_id=client.member_id,
            generation_id=generation_id,
            group_instance_id=client.instance if names_instance else None,
            offsets={T0: CommittedOffset(offset=self.offsets)},
        )
        is_old = 0 <= generation_id < self.newest_generation
        if is_old or (client.member_id in self.replaced and generation_id >= 0):
            self.stale[self.group.last_request_id + 1] = request
        self.ask(request, client)

    @rule()
    def tool_commits(self) -> None:
        self.offsets += 1
        self.ask(commit(self.offsets), Client())

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def client_leaves(self, data: st.DataObject) -> None:
        client = self.clients.pop(data.draw(st.integers(0, len(self.clients) - 1)))
        leaving = LeavingMember(member_id=client.member_id, group_instance_id=client.instance)
        self.ask(Leave(group_id="g", members=(leaving,)), client)

    @rule(elapsed_ms=st.sampled_from((50, 101, 350, 1001)))
    def time_passes(self, elapsed_ms: int) -> None:
        self.group.tick(elapsed_ms)
        self.hear()

    @rule()
    def group_is_deleted(self) -> None:
        self.ask(DeleteGroup(group_id="g"), Client())

    @rule()
    def topic_is_deleted(self) -> None:
        self.group.step(events.TopicsDeleted(topics=("t",)))
        self.hear()

    @precondition(lambda self: self.group.writes)
    @rule(count=st.integers(1, 3))
    def writes_are_committed(self, count: int) -> None:
        for _ in range(min(count, len(self.group.writes))):
            self.group.commit_write()
        self.hear()

    @precondition(lambda self: self.group.writes)
    @rule()
    def write_fails(self) -> None:
        self.group.fail_write()
        self.hear()

    @rule(survive=st.integers(0, 2))
    def coordinator_fails_over(self, survive: int) -> None:
        """Some of the writes under way made it; nobody was told."""
        last_request_id = self.group.last_request_id
        self.group.batches += [write.records for write in self.group.writes[:survive]]
        self.group = self.group.reloaded()
        self.group.last_request_id = last_request_id
        self.asked.clear()
        self.stale.clear()
        loaded = self.group.coordinator.groups.get("g")
        self.newest_generation = 0 if loaded is None else loaded.generation_id
        if loaded is not None:
            self.replaced -= {*loaded.members}  # by an id that was never committed
        if loaded is None:
            self.told.clear()  # the group starts again at generation 1

    @invariant()
    def the_durable_state_is_the_replayed_log(self) -> None:
        replayed = CommittedState()
        for record in self.group.log:
            replayed.apply(record)
        assert replayed == self.group.coordinator.committed, "a"

    def teardown(self) -> None:
        for _ in range(5):
            self.group.tick(300_000)
            self.group.commit_writes()
            self.hear()
        group = self.group.coordinator.groups.get("g")
        assert group is None or group.state is GroupState.EMPTY, "e"
        assert not self.asked, "e: everybody is answered"


class OneGroupAmongStrangers(OneGroup):
    @rule(
        data=st.data(),
        instance=st.sampled_from((None, "i", "j")),
        generation_id=st.integers(-1, 3),
        protocol=st.sampled_from(("range", "sticky")),
    )
    def anybody_asks_anything(
        self, data: st.DataObject, instance: str | None, generation_id: int, protocol: str
    ) -> None:
        """Whatever is asked, with whoever's ids: no rule of the group is broken by it."""
        group = self.group.coordinator.groups.get("g") or Group("g")
        member_id = data.draw(st.sampled_from(("", "x", *group.members, *group.pending)))
        self.names += 1
        self.tags += 1
        requests: list[Request] = [
            join(
                member_id,
                new_member_id=f"m{self.names}",
                group_instance_id=instance,
                requires_known_member_id=generation_id > 0,
                protocols=((protocol, b""), ("range", b"subscription")),
            ),
            beat(member_id, generation_id, instance),
            Sync(
                group_id="g",
                member_id=member_id,
                generation_id=generation_id,
                group_instance_id=instance,
                assignments={key: f"{self.tags}:".encode() for key in group.members},
            ),
            leave(member_id, instance=instance),
            DeleteOffsets(group_id="g", partitions=(T0,)),
        ]
        self.group.ask(data.draw(st.sampled_from(requests)))
        self.hear()


EXAMPLES = examples(150, stateful_step_count=30)
UNTIL_FOUND = settings(EXAMPLES, max_examples=150, phases=[Phase.generate])


def test_the_promises_hold_under_any_schedule() -> None:
    run_machine(OneGroup, settings=EXAMPLES)


def test_whatever_strangers_ask_the_promises_hold() -> None:
    run_machine(OneGroupAmongStrangers, settings=settings(EXAMPLES, max_examples=tries(100)))


def _answers_before_commit(
    self: GroupOutbox, records: tuple[LogRecord, ...], done: WriteDone
) -> None:
    done(0, ErrorCode.NONE)
    APPEND(self, records, lambda _now_ms, _error_code: None)


def _any_generation(
    self: ClassicProtocol, group: Group, request: Sync | CommitOffsets
) -> ErrorCode:
    return group.refusal(request.member_id, request.group_instance_id)


def _same_generation(self: Rebalance, group: Group, now_ms: int) -> None:
    group.generation_id -= 1
    COMPLETE(self, group, now_ms)


def _replaces_in_memory(self: Joining, group: Group, request_id: int, joining: Join) -> None:
    old_id = group.static[joining.group_instance_id or ""]
    member = self._rename(group, old_id, joining.new_member_id)
    self._outbox.reply(request_id, self._rebalance.joined(group, member))


APPEND, COMPLETE = GroupOutbox.append, Rebalance._complete_join
MUTANTS = {
    "answers before commit": (GroupOutbox, "append", _answers_before_commit),
    "takes any generation": (ClassicProtocol, "_generation_refusal", _any_generation),
    "repeats a generation": (Rebalance, "_complete_join", _same_generation),
    "replaces in memory only": (Joining, "_replace_once_stored", _replaces_in_memory),
}


@pytest.mark.planted
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[name])
    with pytest.raises((AssertionError, InvariantViolation)):
        run_machine(
            OneGroup, settings=settings(EXAMPLES, max_examples=150, phases=(Phase.generate,))
        )
