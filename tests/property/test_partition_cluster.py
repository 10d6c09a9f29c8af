"""Three replicas and their controller under random schedules: nothing committed is ever lost.

Messages are delayed, repeated, reordered and lost; brokers crash and come back, sometimes without
their log's tail; leaders change for no reason. Each mutant breaks one rule, and must be found.
"""

from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple, TypeVar

import pytest

from quorumlog.broker.core import effects, events
from quorumlog.broker.core.effects import AnswerFetch, Effect
from quorumlog.broker.core.isr import Progress
from quorumlog.broker.core.partition import Partition
from quorumlog.broker.core.partition_state import Marks
from quorumlog.broker.core.roles import Leader
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_EPOCH, BrokerId, Epoch, Offset
from tests.unit.broker.replicas import (
    BROKERS,
    Controller,
    FetchReply,
    Record,
    Replica,
    image,
)

STEPS = 600
SEEDS = 150
MUTANT_SEEDS = 2000

MessageT = TypeVar("MessageT")


class Loss(Exception):
    """What was committed is gone or changed."""


class Asked(NamedTuple):
    """An AlterPartition or its answer on the way; `process` is the asker's broker epoch."""

    who: BrokerId
    process: int
    message: effects.ProposeIsr | events.IsrAnswered


class Cluster:
    def __init__(self, seed: int, partition_class: type[Partition]) -> None:
        self.random = Random(seed)
        self.partition_class = partition_class
        self.now_ms = self.values = 0
        self.controller = Controller(image(1, 0, 0, BROKERS))
        self.controller.commit()
        self.replicas = {who: Replica(who, partition_class) for who in BROKERS}
        self.seen = dict.fromkeys(BROKERS, 0)
        self.process = dict.fromkeys(BROKERS, 0)
        self.down: set[BrokerId] = set()
        self.fetches: list[tuple[BrokerId, events.FollowerFetched]] = []
        self.replies: list[tuple[BrokerId, int, FetchReply]] = []
        self.asked: list[Asked] = []
        self.committed: list[Record] = []

    # --- What may happen ---

    def some(self, up: Iterable[BrokerId] = BROKERS) -> BrokerId:
        return self.random.choice(sorted(up))

    def pick(self, waiting: list[MessageT]) -> MessageT | None:
        """Any message; sometimes it stays, and so arrives twice."""
        if not waiting:
            return None
        index = self.random.randrange(len(waiting))
        return waiting[index] if self.random.random() < 0.1 else waiting.pop(index)

    def publish(self) -> None:
        who = self.some()
        if who not in self.down and self.seen[who] < len(self.controller.history):
            event = self.controller.history[self.seen[who]]
            self.seen[who] += 1
            self.step(who, event)

    def produce(self) -> None:
        for who in BROKERS:
            replica = self.replicas[who]
            refused = replica.partition.append_refusal(-1) is not ErrorCode.NONE
            if who not in self.down and not refused and self.random.random() < 0.8:
                self.values += 1
                replica.append(self.now_ms, [self.values])
                self.check(who)

    def send_fetch(self) -> None:
        who = self.some()
        replica = self.replicas[who]
        if who not in self.down and replica.fetching is not None:
            request = replica.fetch_request(self.process[who])
            self.fetches.append((replica.fetching.leader_id, request))

    def serve_fetch(self) -> None:
        picked = self.pick(self.fetches)
        if picked is not None:
            leader_id, request = picked
            if leader_id not in self.down:
                count = self.random.choice((1, 2, 100))
                reply = self.replicas[leader_id].serve(self.now_ms, request, count)
                self.check(leader_id)
                self.replies.append((request.broker_id, request.broker_epoch, reply))

    def take_reply(self) -> None:
        picked = self.pick(self.replies)
        if picked is not None:
            who, process, reply = picked
            if who not in self.down and self.process[who] == process:
                self.replicas[who].take(self.now_ms, reply)
                self.check(who)

    def alter_partition(self) -> None:
        for who in BROKERS:
            proposals = self.replicas[who].proposals
            self.asked += [Asked(who, self.process[who], proposal) for proposal in proposals]
            proposals.clear()
        picked = self.pick(self.asked)
        if picked is None or picked.process != self.process[picked.who]:
            return
        if isinstance(picked.message, effects.ProposeIsr):
            answer = self.controller.decide(picked.message, picked.who)
            if self.random.random() < 0.3:
                unknown = ErrorCode.REQUEST_TIMED_OUT
                asked_epoch = picked.message.partition_epoch
                answer = events.IsrAnswered(asked_epoch=asked_epoch, error_code=unknown)
            self.asked.append(Asked(picked.who, picked.process, answer))
        elif picked.who not in self.down:
            self.step(picked.who, picked.message)

    def tick(self) -> None:
        self.now_ms += self.random.choice((1, 40, 101))
        for who in BROKERS:
            if who not in self.down:
                self.step(who, events.Ticked())

    def crash(self) -> None:
        if len(self.down) < 2:
            self.down.add(self.some())

    def fence(self) -> None:
        if self.down:
            self.controller.fence(self.some(self.down))

    def restart(self) -> None:
        if not self.down:
            return
        who = self.some(self.down)
        self.process[who] = self.controller.register(who)
        log = self.replicas[who].log
        if self.random.random() < 0.5 and who not in self.controller.image.isr:
            log.truncate_to(self.random.randint(0, len(log.records)))  # power was lost
        high_watermark = self.random.randint(0, self.replicas[who].partition.high_watermark)
        self.replicas[who] = Replica(who, self.partition_class, log, high_watermark)
        self.seen[who] = len(self.controller.history) - 1
        self.down.discard(who)
        self.publish()
        self.controller.unfence(who)

    def move_leader(self) -> None:
        self.controller.move_leader()

    # --- What must hold ---

    def step(self, who: BrokerId, event: events.Event) -> None:
        self.replicas[who].step(self.now_ms, event)
        self.check(who)

    def check(self, who: BrokerId) -> None:
        replica = self.replicas[who]
        records, high_watermark = replica.log.records, replica.partition.high_watermark
        held = records[:high_watermark]
        common = min(len(held), len(self.committed))
        if held[:common] != self.committed[:common]:
            raise Loss(f"broker {who} shows {held[:common]}, not {self.committed[:common]}")
        if not replica.partition.is_leader:
            if high_watermark > len(self.committed):
                raise Loss(f"follower {who} shows what no leader has committed")
            return
        is_current = replica.partition.leader_epoch == self.controller.image.leader_epoch
        if is_current and records[: len(self.committed)] != self.committed:
            raise Loss(f"leader {who} lacks {self.committed[len(records) :]}")
        if len(held) > len(self.committed):
            self.committed = held

    def run(self) -> None:
        often = [self.publish, self.produce, self.send_fetch, self.serve_fetch, self.take_reply]
        weights = [8, 4, 8, 8, 8, 4, 1, 0.3, 0.3, 0.8, 0.3]
        rare = [
            self.alter_partition,
            self.tick,
            self.crash,
            self.fence,
            self.restart,
            self.move_leader,
        ]
        for happening in self.random.choices([*often, *rare], weights, k=STEPS):
            happening()

    def heal(self) -> None:
        """Everybody returns; after a while all logs are equal and all is committed."""
        while self.down:
            self.restart()
        self.fetches.clear()
        self.replies.clear()
        for _ in range(60):
            self.now_ms += 10
            for who in BROKERS:
                while self.seen[who] < len(self.controller.history):
                    self.seen[who] += 1
                    self.step(who, self.controller.history[self.seen[who] - 1])
            for who in BROKERS:
                replica = self.replicas[who]
                if replica.fetching is not None:
                    request = replica.fetch_request(self.process[who])
                    leader_id = replica.fetching.leader_id
                    replica.take(
                        self.now_ms, self.replicas[leader_id].serve(self.now_ms, request, 100)
                    )
                    self.check(leader_id)
                    self.check(who)
            while self.asked or any(replica.proposals for replica in self.replicas.values()):
                self.alter_partition()
            for who in BROKERS:
                self.step(who, events.Ticked())


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_nothing_committed_is_lost_and_the_replicas_converge(first: int) -> None:
    for seed in range(first, first + 50):
        cluster = Cluster(seed, Partition)
        cluster.run()
        cluster.heal()
        leader = cluster.controller.image.leader_id
        logs = [replica.log.records for replica in cluster.replicas.values()]
        assert logs == [cluster.replicas[leader].log.records] * len(BROKERS), seed
        assert cluster.committed == logs[0], seed
        assert {*cluster.controller.image.isr} == {*BROKERS}, seed


class Unchecked(Partition):
    """The invariants inside the core would find most mutants first: here the outcome must."""

    def check_invariants(self, before: Marks, *, truncates: bool = False) -> None:
        pass


class CommitsAtItsOwnLogEnd(Unchecked):
    def _replicas_that_count(self, role: Leader, now_ms: int) -> Iterable[Progress]:
        return ()


class CountsOnlyTheGrantedIsr(Unchecked):
    def _replicas_that_count(self, role: Leader, now_ms: int) -> Iterable[Progress]:
        return [progress for who, progress in role.followers.items() if who in role.isr]


class LetsLaggardsJoin(Unchecked):
    def _may_join(self, role: Leader, replica: BrokerId) -> bool:
        return True


class IgnoresBrokerEpochs(Unchecked):
    def _is_replaced(self, progress: Progress, event: events.FollowerFetched) -> bool:
        return False

    def _broker_epoch(self, role: Leader, member: BrokerId) -> int:
        return -1

    def _may_join(self, role: Leader, replica: BrokerId) -> bool:
        floor = max(self.high_watermark, role.epoch_start)
        return role.followers[replica].log_end_offset >= floor


class CountsDivergingFollowers(Unchecked):
    def _handle_follower_fetched(
        self, now_ms: int, event: events.FollowerFetched
    ) -> Sequence[Effect]:
        role = self.role
        if isinstance(role, Leader) and event.broker_id in role.followers:
            role.followers[event.broker_id].log_end_offset = event.fetch_offset
        return super()._handle_follower_fetched(now_ms, event)


class IgnoresDivergence(Unchecked):
    def judge_read(
        self, leader_epoch: Epoch, fetch_offset: Offset, last_fetched_epoch: Epoch
    ) -> AnswerFetch:
        return super().judge_read(leader_epoch, fetch_offset, NO_EPOCH)


class TruncatesToItsHighWatermark(Unchecked):
    """As before KIP-101."""

    def _handle_leader_diverged(self, event: events.LeaderDiverged) -> Sequence[Effect]:
        if not self._still_fits(event):
            return ()
        return [effects.TruncateTo(offset=self.high_watermark)]

    def _lead_or_follow(self, now_ms: int, image: object) -> Sequence[Effect]:
        ordered = super()._lead_or_follow(now_ms, image)  # type: ignore[arg-type]  # a PartitionImage
        if self.is_leader:
            return ordered
        return [effects.TruncateTo(offset=self.high_watermark), *ordered]


class TakesLateAnswers(Unchecked):
    """Looks at the length of its log only: found by this very test."""

    def accepts_answer(
        self, leader_epoch: Epoch, fetch_offset: Offset, last_fetched_epoch: Epoch
    ) -> bool:
        return self._follows_in(leader_epoch) and fetch_offset == self.log_end_offset


MUTANTS = [
    CommitsAtItsOwnLogEnd,
    CountsOnlyTheGrantedIsr,
    LetsLaggardsJoin,
    CountsDivergingFollowers,
    IgnoresDivergence,
    TruncatesToItsHighWatermark,
    IgnoresBrokerEpochs,
    TakesLateAnswers,
]


def run_many(partition_class: type[Partition], seeds: int) -> None:
    for seed in range(seeds):
        Cluster(seed, partition_class).run()


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_loses_what_was_committed(mutant: type[Partition]) -> None:
    with pytest.raises(Loss):
        run_many(mutant, MUTANT_SEEDS)
