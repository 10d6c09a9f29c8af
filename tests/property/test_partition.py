"""One replica and its controller under any schedule: invariants hold, mutants are found."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import astuple
from itertools import product
from typing import get_args

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from quorumlog.broker.partitions.core import effects, events
from quorumlog.broker.partitions.core.effects import Effect
from quorumlog.broker.partitions.core.events import Event
from quorumlog.broker.partitions.core.following import Followership
from quorumlog.broker.partitions.core.high_watermark import HighWatermarkRule
from quorumlog.broker.partitions.core.isr import FollowerProgress
from quorumlog.broker.partitions.core.isr_rules import IsrRules
from quorumlog.broker.partitions.core.partition import KAFKA_RULES, PartitionRules
from quorumlog.broker.partitions.core.partition_invariants import PartitionInvariants
from quorumlog.broker.partitions.core.role_changes import RoleChanges
from quorumlog.broker.partitions.core.roles import Follower, Leader, Role, Unassigned
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, Epoch, Offset
from tests.support.broker.replicas import ALL_ALIVE, BROKERS, Controller, Replica, image
from tests.support.sizes import examples


class OneReplica(RuleBasedStateMachine):
    """Broker 1's replica. Requests to the controller may be delayed, repeated or lost."""

    partition_rules = KAFKA_RULES

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.controller = Controller(image(1, 0, 0, (1, 2)))
        self.controller.commit()
        self.replica = Replica(BROKERS[0], self.partition_rules)
        self.asked: list[effects.ProposeIsr] = []
        self.publish()

    def step(self, event: Event) -> None:
        self.replica.step(self.now_ms, event)
        if not self.replica.partition.needs_ticks():
            far_ms = self.now_ms + 2**40  # whatever the time is: else it waits for ever
            assert not self.replica.partition.step(far_ms, events.Ticked())
        self.asked += self.replica.proposals
        self.replica.proposals.clear()

    def publish(self) -> None:
        published = self.controller.history[-1]
        self.step(
            events.PartitionPublished(
                image=published.image, brokers=published.brokers, min_insync_replicas=2
            )
        )

    @rule(count=st.integers(1, 3))
    def append(self, count: int) -> None:
        if self.replica.partition.state.is_leader:
            self.replica.append(self.now_ms, [0] * count)

    @rule(count=st.integers(1, 3))
    def append_and_fetch(self, count: int) -> None:
        """What happens most: broker 2 has at once what was appended."""
        self.append(count)
        self.fetch(BROKERS[1], 0, 0, self.controller.brokers[BROKERS[1]].broker_epoch)

    @rule(
        replica=st.sampled_from(BROKERS[1:]),
        lag=st.sampled_from((0,) * 5 + (1, 1, 2, 3, -1)),  # weighted: most fetches should count
        newer=st.sampled_from((0,) * 9 + (1, -1)),
        process=st.sampled_from((0,) * 9 + (1, -1)),
    )
    def fetch(self, replica: BrokerId, lag: int, newer: int, process: int) -> None:
        partition = self.replica.partition
        self.step(
            events.FollowerFetched(
                broker_id=replica,
                broker_epoch=process,
                leader_epoch=Epoch(partition.state.leader_epoch + newer),
                fetch_offset=Offset(partition.state.log_end_offset - lag),
            )
        )

    @rule(count=st.integers(0, 3), behind=st.integers(0, 3))
    def the_leader_answers(self, count: int, behind: int) -> None:
        partition, log = self.replica.partition, self.replica.log
        if (
            isinstance(partition.state.role, Follower)
            and partition.state.role.leader_id != NO_LEADER
        ):
            log.append([(partition.state.leader_epoch, 0)] * count)
            end = len(log.records)
            self.step(
                events.LeaderAnswered(
                    leader_epoch=partition.state.leader_epoch,
                    log_end_offset=Offset(end),
                    high_watermark=Offset(end + 1 - behind),
                    log_start_offset=Offset(0),
                )
            )

    @rule(end=st.integers(0, 20), older=st.integers(0, 2))
    def the_leader_diverges(self, end: int, older: int) -> None:
        partition = self.replica.partition
        self.step(
            events.LeaderDiverged(
                leader_epoch=partition.state.leader_epoch,
                fetch_offset=partition.state.log_end_offset,
                last_fetched_epoch=self.replica.log.latest_epoch,
                epoch=Epoch(max(0, self.replica.log.latest_epoch - older)),
                end_offset=Offset(end),
            )
        )

    @rule(elapsed_ms=st.sampled_from((1, 60, 101)))
    def tick(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        self.step(events.Ticked())

    @rule(data=st.data(), outcome=st.sampled_from(("answered", "lost", "unknown", "published")))
    def request_reaches_controller(self, data: st.DataObject, outcome: str) -> None:
        if self.asked:
            asked = data.draw(st.sampled_from(self.asked))
            answer = self.controller.decide(asked, BROKERS[0])
            if outcome == "published":
                self.publish()
            elif outcome != "lost":
                unknown = events.IsrAnswered(
                    asked_epoch=asked.partition_epoch, error_code=ErrorCode.REQUEST_TIMED_OUT
                )
                self.step(unknown if outcome == "unknown" else answer)

    @rule(who=st.sampled_from(BROKERS), luck=st.integers(0, 3), returns=st.integers(0, 3))
    def a_broker_dies(self, who: BrokerId, luck: int, returns: int) -> None:
        if luck:
            return
        self.controller.fence(who)
        if returns:
            self.controller.register(who)
            self.controller.unfence(who)
        self.publish()

    @rule(luck=st.integers(0, 3), misses_one=st.booleans())
    def the_leader_changes(self, luck: int, misses_one: bool) -> None:
        if luck:
            return
        self.controller.move_leader()
        if misses_one:
            self.controller.move_leader()
        self.publish()

    @rule()
    def an_old_image_is_seen_again(self) -> None:
        published = self.controller.history[0]
        self.step(events.PartitionPublished(image=published.image, brokers=published.brokers))


class CommitsAlone(HighWatermarkRule):
    def replicas_that_count(self, role: Leader, now_ms: int) -> Iterable[FollowerProgress]:
        return ()


class CountsOnlyTheGrantedIsr(HighWatermarkRule):
    def replicas_that_count(self, role: Leader, now_ms: int) -> Iterable[FollowerProgress]:
        return [progress for who, progress in role.followers.items() if who in role.isr]


class LetsLaggardsJoin(IsrRules):
    def may_join(self, role: Leader, replica: BrokerId) -> bool:
        return True


class CommitsBelowMinIsr(HighWatermarkRule):
    def maybe_advance(self, role: Leader, now_ms: int) -> Sequence[Effect]:
        asked, self._state.min_insync_replicas = self._state.min_insync_replicas, 1
        ordered = super().maybe_advance(role, now_ms)
        self._state.min_insync_replicas = asked
        return ordered


class ShrinksBeforeItIsGranted(IsrRules):
    def propose(self, role: Leader, new_isr: frozenset[BrokerId]) -> Sequence[Effect]:
        ordered = super().propose(role, new_isr)
        role.maximal_isr = new_isr
        return ordered


class TakesOldImages(RoleChanges):
    def published(self, now_ms: int, event: events.PartitionPublished) -> Sequence[Effect]:
        self._state.leader_epoch = self._state.partition_epoch = Epoch(-1)
        return super().published(now_ms, event)


class CommitsWhatItLacks(Followership):
    def leader_answered(self, event: events.LeaderAnswered) -> Sequence[Effect]:
        state = self._state
        state.log_end_offset = event.log_end_offset
        state.high_watermark = max(state.high_watermark, event.high_watermark)
        return ()


class CutsWhatItHasCommitted(Followership):
    def leader_diverged(self, event: events.LeaderDiverged) -> Sequence[Effect]:
        is_member, self._state.is_member = self._state.is_member, False
        ordered = super().leader_diverged(event)
        self._state.is_member = is_member
        return ordered


MUTANTS = {
    PartitionRules(high_watermark=CommitsAlone): "4: ",
    PartitionRules(high_watermark=CountsOnlyTheGrantedIsr): "4: ",
    PartitionRules(isr=LetsLaggardsJoin): "5: ",
    PartitionRules(high_watermark=CommitsBelowMinIsr): "6: ",
    PartitionRules(isr=ShrinksBeforeItIsGranted): "3: ",
    PartitionRules(role_changes=TakesOldImages): "1: ",
    PartitionRules(followership=CommitsWhatItLacks): "2: ",
    PartitionRules(followership=CutsWhatItHasCommitted): "8: ",
}
EXAMPLES = examples(200, stateful_step_count=40)


def _broken_rule(rules: PartitionRules) -> str:
    (broken,) = {*astuple(rules)} - {*astuple(KAFKA_RULES)}
    return str(broken.__name__)


UNTIL_FOUND = settings(
    EXAMPLES, max_examples=2000, phases=[Phase.generate], report_multiple_bugs=False
)


def test_the_invariants_hold_under_any_schedule() -> None:
    run_state_machine_as_test(OneReplica, settings=EXAMPLES)


@pytest.mark.planted
@pytest.mark.parametrize("mutant", MUTANTS, ids=_broken_rule)
def test_a_mutant_is_found(mutant: PartitionRules) -> None:
    machine = type("Mutated", (OneReplica,), {"partition_rules": mutant})
    with pytest.raises(InvariantViolation, match=MUTANTS[mutant]):
        run_state_machine_as_test(machine, settings=UNTIL_FOUND)


ROLES: dict[type[Role], Role] = {
    Unassigned: Unassigned(),
    Follower: Follower(leader_id=BROKERS[1]),
    Leader: Leader(epoch_start=Offset(0), isr=frozenset(), maximal_isr=frozenset(), followers={}),
}
LEGAL = {(a, b) for a in ROLES for b in ROLES} - {(Unassigned, Unassigned)}


@pytest.mark.parametrize(("source", "target"), list(product(get_args(Role), repeat=2)))
def test_every_pair_of_roles(source: type[Role], target: type[Role]) -> None:
    partition = Replica(BROKERS[0]).partition
    partition.state.role = ROLES[source]
    is_legal = (source, target) in LEGAL  # written a second time here, on purpose
    with nullcontext() if is_legal else pytest.raises(InvariantViolation, match="legal change"):
        partition.state.become(ROLES[target])
    assert partition.state.role is ROLES[target if is_legal else source]


def test_the_direct_method_does_what_the_event_does() -> None:
    one, other = Replica(BROKERS[0]), Replica(BROKERS[0])
    for replica in (one, other):
        published = events.PartitionPublished(image=image(1, 0, 0, (1,)), brokers=ALL_ALIVE)
        replica.step(0, published)
    appended = one.partition.appended(1, Offset(3))
    assert appended == other.partition.step(1, events.RecordsAppended(log_end_offset=Offset(3)))
    states = one.partition.state, other.partition.state
    assert PartitionInvariants(states[0]).marks() == PartitionInvariants(states[1]).marks()
