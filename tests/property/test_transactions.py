"""Transactions under any schedule of clients, failures and fail-overs; mutants that must be found.

`tests.support.transactions.world` states the invariants.
"""

import sys
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from quorumlog.broker.transactions.core.requests import NO_PRODUCER, ProducerIdAndEpoch
from quorumlog.broker.transactions.core.rules import SOUND, TransactionRules
from quorumlog.broker.transactions.core.states import TransactionState
from quorumlog.chaos.simulation.oracles.exchanges import RUDE
from tests.support.sizes import examples
from tests.support.transactions.coordination import abort, add, commit, init
from tests.support.transactions.world import PARTITIONS, Client, World

CLIENTS = st.integers(0, 3)
FATES = ("written", "slowly answered", "slowly answered", "unanswered", "lost")
SOME_PARTITIONS = st.sets(st.sampled_from(PARTITIONS), min_size=1, max_size=2)


class Transactions(RuleBasedStateMachine):
    obeyed: ClassVar[TransactionRules] = SOUND

    @initialize(
        level=st.sampled_from((0, 1, 2, 2)),
        epoch=st.sampled_from((-1, 0, 32_764, 32_765, 32_766)),
        versions=st.sampled_from(((2, 2, 2), (2, 1, 2), (0, 1, 0), (2, 2, 0))),
    )
    def begin(self, level: int, epoch: int, versions: tuple[int, ...]) -> None:
        self.world = World(level, epoch, versions, self.obeyed)

    def client(self, index: int) -> Client:
        return self.world.clients[index]

    # --- Clients ---

    @rule(index=CLIENTS, really=st.sampled_from((True, False, False)))
    def client_begins(self, index: int, really: bool = True) -> None:
        client = self.client(index)
        if really:
            self.world.ask(client, init(name=client.name))

    @rule(index=CLIENTS)
    def client_goes_on(self, index: int) -> None:
        client = self.client(index)
        if client.producer != NO_PRODUCER:
            self.world.ask(client, init(client.producer, name=client.name))

    @rule(index=CLIENTS, partitions=SOME_PARTITIONS)
    def client_adds(self, index: int, partitions: set) -> None:  # type: ignore[type-arg]
        client = self.client(index)
        version = 5 if client.version == 2 else 3
        request = add(client.producer, *partitions, name=client.name, api_version=version)
        self.world.ask(client, request)

    @rule(index=CLIENTS, where=st.sampled_from(PARTITIONS))
    def client_produces(self, index: int, where: object) -> None:
        self.world.produce(self.client(index), where)  # type: ignore[arg-type]

    @rule(index=CLIENTS, is_commit=st.booleans())
    def client_ends_a_transaction_if_it_has_one(self, index: int, is_commit: bool) -> None:
        for client in (self.client(index), *self.world.clients):
            state = self.world.state(client.name)
            is_open = state is not None and state.state is TransactionState.ONGOING
            if is_open and self.world.is_current(client):
                self.client_ends(self.world.clients.index(client), is_commit)
                break

    @rule(index=CLIENTS, is_commit=st.booleans())
    def client_ends(self, index: int, is_commit: bool) -> None:
        client = self.client(index)
        end = commit if is_commit else abort
        version = 5 if client.version == 2 else 4
        self.world.ask(client, end(client.producer, name=client.name, api_version=version))

    @rule(index=CLIENTS, partitions=SOME_PARTITIONS)
    def client_has_an_open_transaction(self, index: int, partitions: set) -> None:  # type: ignore[type-arg]
        """Without this, few schedules would get far."""
        client = self.client(index)
        self.world.settle()
        for _ in range(2):
            if not self.world.is_current(client):
                self.client_begins(index)
                self.world.settle()
        self.client_adds(index, partitions)
        self.world.settle()
        for where in sorted(partitions):
            self.client_produces(index, where)

    @rule(
        index=CLIENTS,
        partitions=SOME_PARTITIONS,
        is_commit=st.booleans(),
        fate=st.sampled_from((None, "under way", *FATES)),
    )
    def client_has_a_decision_under_way(
        self,
        index: int,
        partitions: set,  # type: ignore[type-arg]
        is_commit: bool,
        fate: str | None,
    ) -> None:
        """`fate`: of its first marker; None: the decision is not committed."""
        self.client_has_an_open_transaction(index, partitions)
        self.client_ends(index, is_commit)
        while fate is not None and self.world.coordination.writes:
            self.world.end_write()
        if fate in FATES and self.world.network.messages:
            self.world.deliver(0, fate)

    @rule(index=CLIENTS)
    def client_replaces_the_others(self, index: int) -> None:
        self.world.settle()
        self.client_begins(index)
        self.world.settle()

    @rule(index=CLIENTS, what=st.sampled_from(("go on", "add", "commit", "abort")))
    def replaced_client_does_not_give_up(self, index: int, what: str) -> None:
        for client in (self.client(index), *self.world.clients):
            if client.producer != NO_PRODUCER and not self.world.is_current(client):
                self.world.ask(client, self.request_of(client, client.producer, what))
                break

    @rule(
        index=CLIENTS,
        what=st.sampled_from(("go on", "add", "commit", "abort")),
        ahead=st.sampled_from((-2, -1, 1)),
        waits=st.booleans(),
    )
    def stranger_invents_an_epoch(self, index: int, what: str, ahead: int, waits: bool) -> None:
        client = self.client(index)
        if waits:
            self.world.settle()
        if (state := self.world.state(client.name)) is not None:
            epoch = max(state.producer_epoch + ahead, 0)
            producer = ProducerIdAndEpoch(state.producer_id, epoch)
            is_rude = epoch not in {state.producer_epoch, state.producer_epoch - 1}
            request = self.request_of(client, producer, what)
            self.world.send(request, client_id=RUDE if is_rude else "stranger")

    def request_of(self, client: Client, producer: ProducerIdAndEpoch, what: str) -> Any:
        is_new, name = client.version == 2, client.name
        match what:
            case "go on":
                return init(producer, name=name)
            case "add":
                return add(producer, PARTITIONS[0], name=name, api_version=5 if is_new else 3)
            case _:
                end = commit if what == "commit" else abort
                return end(producer, name=name, api_version=5 if is_new else 4)

    @precondition(lambda self: self.world.past)
    @rule(data=st.data())
    def a_request_comes_once_more(self, data: st.DataObject) -> None:
        _, request = data.draw(st.sampled_from(self.world.past[-12:]))
        self.world.send(request)

    # --- The log, the network, time ---

    @rule()
    def all_goes_well(self) -> None:
        self.world.settle()

    @precondition(lambda self: self.world.coordination.writes)
    @rule(is_refused=st.sampled_from((False, False, True)))
    def a_write_ends(self, is_refused: bool) -> None:
        self.world.end_write(is_refused=is_refused)

    @precondition(lambda self: self.world.coordination.asked_for)
    @rule(fails=st.booleans())
    def an_allocation_ends(self, fails: bool) -> None:
        self.world.allocate(fails=fails)

    @precondition(lambda self: self.world.network.messages)
    @rule(data=st.data(), fate=st.sampled_from(FATES))
    def a_marker_arrives(self, data: st.DataObject, fate: str) -> None:
        self.world.deliver(data.draw(st.integers(0, len(self.world.network.messages) - 1)), fate)

    @precondition(lambda self: self.world.network.answers)
    @rule(data=st.data())
    def an_answer_arrives(self, data: st.DataObject) -> None:
        self.world.answer(data.draw(st.integers(0, len(self.world.network.answers) - 1)))

    @precondition(lambda self: self.world.network.late)
    @rule()
    def a_marker_arrives_late(self) -> None:
        self.world.network.deliver_late()

    @rule(elapsed_ms=st.sampled_from((1, 25, 1000, 1000, 10_000, 1_000_000)))
    def time_passes(self, elapsed_ms: int) -> None:
        self.world.let_time_pass(elapsed_ms)

    @rule(where=st.sampled_from(PARTITIONS))
    def a_partition_is_deleted_or_made(self, where: object) -> None:
        self.world.delete_partition(where)  # type: ignore[arg-type]

    @rule(level=st.sampled_from((0, 1, 2)))
    def the_level_changes(self, level: int) -> None:
        self.world.set_level(level)

    @rule(
        survivors=st.integers(0, 2), skew_ms=st.sampled_from((0, -300, 300)), is_same=st.booleans()
    )
    def the_coordinator_changes(self, survivors: int, skew_ms: int, is_same: bool) -> None:
        self.world.change_coordinator(survivors, skew_ms=skew_ms, is_same=is_same)

    @invariant()
    def all_holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        has_failed = sys.exc_info()[0] is not None
        if hasattr(self, "world") and not has_failed:
            self.world.heal()


EXAMPLES = examples(200, stateful_step_count=40)


def test_the_promises_hold_under_any_schedule() -> None:
    run_machine(Transactions, settings=EXAMPLES)
