"""One group with members of both protocols under any schedule, converted both ways.

The model knows what clients are told. A classic client *has* what its last sync told it, until it
joins and says that it has less; a client of KIP-848, until it says so in a heartbeat. What must
hold:
  a. No client is told to have what another one has, unless the coordinator may have given that one
     up: then its session or its rebalance is over, by the model's clock. A client that joins after
     that, as if it was still a member, may be a new one to the coordinator: what it has then is not
     its own before a sync tells it so. Until that sync it cannot know.
  b. What is served is what a replay of the log gives, whenever nothing is under way.
  c. A quiet group comes to rest: every partition is had by one client.
  d. A static client of the classic protocol that replaces the last client of KIP-848, and is told
     to skip the assignment, has the partitions of that client, in the same generation.
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from quorumlog.broker.groups.core.consumer import conversion
from quorumlog.broker.groups.core.consumer.records import ConsumerGroupRecord, GroupValue
from quorumlog.broker.groups.core.consumer_groups import ConsumerGroups
from quorumlog.broker.groups.core.group import Group, GroupState
from quorumlog.broker.groups.core.records import LogRecord
from quorumlog.broker.groups.core.requests import Join, JoinResult, SyncResult
from quorumlog.broker.groups.core.rules import GROUP_RULES, GroupRules
from quorumlog.chaos.mutants.consumer_groups import MIXED_GROUPS
from quorumlog.client.core.group_protocol import decode_assignment, encode_assignment
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.message import replaced
from tests.support.groups.consumer.classic import (
    classic_beat,
    classic_join,
    classic_leave,
    classic_sync,
    some,
)
from tests.support.groups.consumer.coordination import ConsumerCoordination, heartbeat, join
from tests.support.sizes import examples

PARTITIONS = 4
SESSION_MS, REBALANCE_MS = 1000, 500
EXAMPLES = examples(40, stateful_step_count=30)
UNTIL_FOUND = settings(EXAMPLES, max_examples=150, phases=[Phase.generate])
Has = frozenset[int]


@dataclass
class Client:
    name: str
    is_classic: bool
    instance: str | None = None  # of a static member
    has: Has = frozenset()
    told: Has = frozenset()  # what it may have; it gives the rest up before it speaks again
    epoch: int = 0  # or the generation
    must_join: bool = True
    safe_until_ms: int = 0  # when the coordinator may give it up
    own: Has = frozenset()  # what nobody else may be told to have until then
    has_joined: bool = field(default=False)  # and not synced

    def classic_join(self, member_id: str, owned: Has = frozenset()) -> Join:
        return classic_join(
            member_id, owned=some(*owned), new_member_id=self.name, group_instance_id=self.instance
        )

    def lose_all(self) -> None:
        self.has = self.told = self.own = frozenset()
        self.epoch, self.must_join, self.has_joined = 0, True, False


class MixedGroup(RuleBasedStateMachine):
    obeyed: ClassVar[GroupRules] = GROUP_RULES

    def __init__(self) -> None:
        super().__init__()
        self.groups = ConsumerCoordination(rules=self.obeyed)
        self.clients: list[Client] = []
        self.names = 0

    # --- What clients do; every request is answered, or given up, before the next ---

    def ask(self, request: Any) -> Any:
        """Return the answer, or None: it did not come."""
        request_id = self.groups.ask(request)
        self.groups.commit_writes()
        return self.groups.replies.get(request_id)

    def beat(self, client: Client, *, syncs: bool = True) -> None:
        client.has &= client.told
        client.own &= client.has
        if client.is_classic:
            self.beat_classic(client, syncs=syncs)
        else:
            self.beat_consumer(client)

    def beat_consumer(self, client: Client) -> None:
        owned = self.groups.topics.some("t", *client.has)
        if client.must_join:
            client.lose_all()
            result = self.ask(join(client.name, instance_id=client.instance))
        else:
            result = self.ask(heartbeat(client.name, client.epoch, owned=owned))
        if result.error_code is ErrorCode.NONE:
            client.must_join, client.epoch = False, result.member_epoch
            self.lives(client, own=client.has)
            if result.assignment is not None:
                wanted = frozenset(index for _, index in result.assignment)
                self.take(client, wanted)
        elif result.error_code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            client.lose_all()

    def beat_classic(self, client: Client, *, syncs: bool) -> None:
        if not client.must_join and not client.has_joined:
            code = self.ask(classic_beat(client.name, client.epoch))
            if code is ErrorCode.NONE:
                self.lives(client, own=client.has)
                return
            if code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}:
                client.lose_all()
            client.must_join = True
        if client.must_join:
            if client.safe_until_ms <= self.groups.now_ms:
                client.own = frozenset()
            request_id = self.groups.ask(client.classic_join(client.name, client.has))
            self.groups.commit_writes()
            if request_id not in self.groups.replies:
                self.wait_for_others(client, request_id)
            joined: JoinResult | None = self.groups.replies.get(request_id)
            if joined is None or joined.error_code is not ErrorCode.NONE:
                if joined is not None and joined.error_code is ErrorCode.UNKNOWN_MEMBER_ID:
                    client.lose_all()
                    self.ask(client.classic_join(""))
                return
            self.note_joined(client, joined)
        if syncs:
            self.sync(client)

    def note_joined(self, client: Client, joined: JoinResult) -> None:
        client.epoch, client.must_join, client.has_joined = joined.generation_id, False, True
        self.lives(client, own=client.own)

    def wait_for_others(self, client: Client, request_id: int) -> None:
        """In a classic group a join waits until all have joined."""
        for _ in range(8):
            if request_id in self.groups.replies:
                return
            for other in self.clients:
                if (
                    other is not client
                    and other.is_classic
                    and request_id not in self.groups.replies
                ):
                    self.groups.ask(other.classic_join(other.name, other.has))
                    other.must_join = True
            self.groups.tick(100)
            self.groups.commit_writes()

    def sync(self, client: Client) -> None:
        group = self.groups.coordinator.groups.get("g")
        assignments: dict[str, Any] = {}
        if group is not None and group.leader == client.name:
            members = sorted(group.members)
            kept = {one.name: one.has for one in self.clients}
            for index in range(PARTITIONS):
                owner = next((name for name in members if index in kept.get(name, ())), None)
                name = members[index % len(members)]
                if owner in {None, name}:  # else nobody has it until its owner has given it up
                    assignments.setdefault(name, []).append(some(index)[0])
        synced: SyncResult | None = self.ask(classic_sync(client.name, client.epoch, **assignments))
        if synced is None:
            client.must_join = True
            return
        client.has_joined = False
        if synced.error_code is not ErrorCode.NONE:
            client.must_join = True
            return
        wanted = frozenset(one.partition for one in decode_assignment(synced.assignment))
        self.lives(client, own=client.own)
        self.take(client, wanted)
        client.must_join = not client.has <= wanted  # a cooperative member gives up, and joins

    def lives(self, client: Client, *, own: Has) -> None:
        client.safe_until_ms, client.own = self.groups.now_ms + REBALANCE_MS, own

    def take(self, client: Client, wanted: Has) -> None:
        for other in self.clients:
            if other is not client and other.safe_until_ms > self.groups.now_ms:
                both = wanted & other.own
                assert not both, f"a: {client.name} and {other.name} have {sorted(both)}"
        client.told = wanted
        client.has |= wanted
        client.own |= wanted

    # --- What may happen ---

    @precondition(lambda self: len(self.clients) < 4)
    @rule(is_classic=st.booleans(), is_static=st.booleans())
    def client_starts(self, is_classic: bool, is_static: bool) -> None:
        self.names += 1
        name = f"m{self.names}"
        client = Client(name, is_classic, f"i-{name}" if is_static else None)
        self.clients.append(client)
        if is_classic:
            self.ask(client.classic_join(""))
        self.beat(client)

    @precondition(lambda self: any(client.instance for client in self.clients))
    @rule(data=st.data(), says_so=st.booleans(), beats=st.sampled_from((0, 4)))
    def static_client_changes_its_protocol(
        self, data: st.DataObject, says_so: bool, beats: int
    ) -> None:
        """Its process ends, perhaps in a quiet group, and starts again with a new member id."""
        for _ in range(beats):
            self.all_beat()
        static = [client for client in self.clients if client.instance]
        self.change_protocol(data.draw(st.sampled_from(static)), says_so=says_so)

    def change_protocol(self, old: Client, *, says_so: bool) -> None:
        if says_so and not old.is_classic and not old.must_join:
            self.ask(heartbeat(old.name, -2, instance_id=old.instance))
        self.names += 1
        new = Client(f"m{self.names}", not old.is_classic, old.instance)
        self.clients[self.clients.index(old)] = new
        joined: JoinResult | None = self.ask(new.classic_join("")) if new.is_classic else None
        if joined is not None and joined.error_code is ErrorCode.NONE:
            self.note_joined(new, joined)
        keeps_generation = joined is not None and joined.skip_assignment
        self.beat(new)
        if keeps_generation:
            assert new.has == old.told, "d"

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), syncs=st.booleans())
    def client_beats(self, data: st.DataObject, syncs: bool) -> None:
        self.beat(data.draw(st.sampled_from(self.clients)), syncs=syncs)

    @precondition(lambda self: self.clients)
    @rule()
    def all_beat(self) -> None:
        for client in self.clients:
            self.beat(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), how=st.sampled_from(("leaves", "is removed", "dies")))
    def client_ends(self, data: st.DataObject, how: str) -> None:
        """An administrator removes a member of either protocol as a classic member leaves."""
        client = data.draw(st.sampled_from(self.clients))
        if how != "dies":
            client.has = frozenset()
            is_classic = client.is_classic or how == "is removed"
            leaves = classic_leave(client.name) if is_classic else heartbeat(client.name, -1)
            self.ask(leaves)
        self.clients.remove(client)

    @rule(elapsed_ms=st.sampled_from((50, 200, 600, 1500)))
    def time_passes(self, elapsed_ms: int) -> None:
        self.groups.tick(elapsed_ms)
        self.groups.commit_writes()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def a_write_is_refused(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        if client.is_classic:
            client.must_join = True
            self.groups.ask(client.classic_join(client.name, client.has))
        else:
            self.groups.ask(heartbeat(client.name, client.epoch))
        if self.groups.writes:
            self.groups.fail_write()

    @rule()
    def coordinator_fails_over(self) -> None:
        last_request_id = self.groups.last_request_id
        self.groups = self.groups.reloaded()
        self.groups.last_request_id = last_request_id

    # --- What must hold ---

    @invariant()
    def what_is_served_is_what_a_replay_gives(self) -> None:
        if not self.groups.writes and not self.groups.own:
            self.groups.check_replayed()
            loaded = self.groups.reloaded().coordinator
            assert loaded.committed == self.groups.coordinator.committed, "b"
            both = loaded.groups.keys() & loaded.consumer_groups.coordinator.groups.keys()
            assert not both, "a group has one protocol"

    def teardown(self) -> None:
        for _ in range(30):
            for client in self.clients:
                self.beat(client)
            self.groups.tick(100)
            self.groups.commit_writes()
        if self.clients:
            had = sorted(index for client in self.clients for index in client.has)
            assert had == list(range(PARTITIONS)), f"c: {self.clients}"
            speaks = {client.is_classic for client in self.clients}
            group = self.groups.coordinator.groups.get("g")
            if False in speaks:
                assert group is None, "c: a group with a member of KIP-848 is a consumer group"
            elif group is not None:
                assert group.state is GroupState.STABLE, "c"


def test_the_promises_hold_under_any_schedule() -> None:
    run_machine(MixedGroup, settings=EXAMPLES)


# --- Planted bugs ---


def stable(machine: type[MixedGroup]) -> MixedGroup:
    """Return a group of two classic clients that have their partitions."""
    mixed = machine()
    for _ in range(2):
        mixed.client_starts(is_classic=True, is_static=False)
        for _ in range(4):
            mixed.all_beat()
    assert mixed.groups.coordinator.groups["g"].state is GroupState.STABLE
    return mixed


def an_upgrade_goes_on_from_the_generation(machine: type[MixedGroup]) -> None:
    mixed = stable(machine)
    generation_id = mixed.groups.coordinator.groups["g"].generation_id
    mixed.client_starts(is_classic=False, is_static=False)
    assert mixed.groups.group.group_epoch > generation_id


def revoking(machine: type[MixedGroup]) -> MixedGroup:
    """Return a classic group in which one client is to give up partitions at its next beat."""
    mixed = stable(machine)
    mixed.client_starts(is_classic=True, is_static=True)
    for client in mixed.clients * 8:
        mixed.beat(client)
        if client.has - client.told:
            return mixed
    raise AssertionError("no client gives anything up")


def an_upgrade_waits_for_a_revocation(machine: type[MixedGroup]) -> None:
    mixed = revoking(machine)
    mixed.client_starts(is_classic=False, is_static=False)  # `take` compares


def an_upgrade_assigns_what_is_revoked(machine: type[MixedGroup]) -> None:
    mixed = revoking(machine)
    mixed.change_protocol(mixed.clients[-1], says_so=False)  # it subscribes to the same topics
    mixed.teardown()


SCRIPTS = {
    "begins_epochs_anew": an_upgrade_goes_on_from_the_generation,
    "frees_the_unrevoked": an_upgrade_waits_for_a_revocation,
}
OUT_OF_REACH = {"assigns_no_new_topics", "waits_for_the_returned"}  # there is one topic here
OF_COMMITS = {  # no client commits here: `test_consumer_groups.py` finds them
    "takes_commits_of_any_epoch", "takes_commits_of_the_removed", "takes_any_transaction",
}  # fmt: skip
SEARCHED = sorted(MIXED_GROUPS.keys() - OF_COMMITS - OUT_OF_REACH - SCRIPTS.keys())


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_mutant_is_found_by_a_script(name: str) -> None:
    SCRIPTS[name](MixedGroup)
    with pytest.raises(AssertionError):
        SCRIPTS[name](type("Broken", (MixedGroup,), {"obeyed": MIXED_GROUPS[name].parts.groups}))


@pytest.mark.planted
@pytest.mark.parametrize("name", SEARCHED)
def test_a_mutant_is_found(name: str) -> None:
    broken = type("Broken", (MixedGroup,), {"obeyed": MIXED_GROUPS[name].parts.groups})
    with pytest.raises((AssertionError, InvariantViolation)):
        run_machine(broken, settings=UNTIL_FOUND)


@pytest.mark.planted
def test_a_downgrade_that_loses_what_members_have_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = encode_assignment(())
    monkeypatch.setattr(conversion, "encode_assignment", lambda assigned, names: empty)
    with pytest.raises((AssertionError, InvariantViolation)):
        run_machine(MixedGroup, settings=UNTIL_FOUND)


class LastAssignmentsAreATarget(ConsumerGroups):
    """Upgrades as if a leader had assigned all partitions that the topics have now."""

    def _as_consumer_group(self, group: Group) -> tuple[LogRecord, ...]:
        return tuple(map(self._with_hash, super()._as_consumer_group(group)))

    def _with_hash(self, record: LogRecord) -> LogRecord:
        if isinstance(record, ConsumerGroupRecord) and isinstance(record.value, GroupValue):
            value = replaced(record.value, metadata_hash=self.topics.metadata_hash(["t"]))
            return replace(record, value=value)
        return record


def test_an_upgrade_that_takes_the_last_assignments_for_a_target_is_found() -> None:
    an_upgrade_assigns_what_is_revoked(MixedGroup)
    rules = replace(GROUP_RULES, consumer_groups=LastAssignmentsAreATarget)
    with pytest.raises(AssertionError, match="c: "):
        an_upgrade_assigns_what_is_revoked(type("Broken", (MixedGroup,), {"obeyed": rules}))
