"""Three replicas and their controller under random schedules: nothing committed is ever lost.

Messages are delayed, repeated, reordered and lost; brokers crash and come back, sometimes without
their log's tail, or are fenced although they live; leaders change for no reason. An idempotent
producer sends again whatever it has no answer to. Records are deleted from the log's start: what
was said to be gone from all live replicas stays so. The invariants of each replica hold after each
step. `test_partition_mutants.py` breaks the rules.
"""

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from random import Random
from typing import NamedTuple, TypeVar, get_args

import pytest

from quorumlog.broker.partitions.core import effects, events
from quorumlog.broker.partitions.core.partition import KAFKA_RULES, PartitionRules
from quorumlog.broker.partitions.core.partition_invariants import PartitionInvariants
from quorumlog.broker.partitions.core.producer_state import BATCHES_KEPT, ProducerStates
from quorumlog.broker.partitions.core.roles import Follower, Leader, Role, Unassigned
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from tests.support.broker.replicas import (
    ALL_ALIVE,
    BROKERS,
    SEQUENCED,
    Controller,
    FetchReply,
    MemoryLog,
    Record,
    Replica,
    image,
)
from tests.support.sizes import tries

STEPS = 600
SEEDS = 150

MessageT = TypeVar("MessageT")


class Loss(Exception):
    """What was committed is gone or changed."""


class Asked(NamedTuple):
    """An AlterPartition or its answer on the way; `process` is the asker's broker epoch."""

    who: BrokerId
    process: int
    message: effects.ProposeIsr | events.IsrAnswered


class Sent(NamedTuple):
    """A batch of the idempotent producer that waits for the high watermark of one leader."""

    who: BrokerId
    process: int
    leader_epoch: Epoch
    sequence: int
    required_offset: int


class Deleting(NamedTuple):
    """A deletion of the records below `required` that waits on one leader."""

    who: BrokerId
    process: int
    leader_epoch: Epoch
    required: int


class Cluster:
    """`min_insync`: min.insync.replicas. `old`: draws the old images that replicas see again."""

    def __init__(
        self,
        seed: int,
        rules: PartitionRules = KAFKA_RULES,
        producers_class: type[ProducerStates] = ProducerStates,
        min_insync: int = 1,
    ) -> None:
        self.random, self.old = Random(seed), Random(~seed)
        self.min_insync = min_insync
        self.rules, self.producers_class = rules, producers_class
        self.now_ms = self.values = 0
        self.controller = Controller(image(1, 0, 0, BROKERS))
        self.controller.commit()
        self.replicas = {who: self.replica(who) for who in BROKERS}
        self.seen = dict.fromkeys(BROKERS, 0)
        self.process = dict.fromkeys(BROKERS, 0)
        self.down: set[BrokerId] = set()
        self.fetches: list[tuple[BrokerId, events.FollowerFetched]] = []
        self.replies: list[tuple[BrokerId, int, FetchReply]] = []
        self.asked: list[Asked] = []
        self.committed: list[Record] = []
        self.sent: list[Sent] = []
        self.sequence = self.acknowledged = 0  # the next to send, and to be acknowledged
        self.deleting: list[Deleting] = []
        self.deleted = dict.fromkeys(BROKERS, 0)  # below it, this one must show nothing any more

    def replica(
        self,
        who: BrokerId,
        log: MemoryLog | None = None,
        high_watermark: int = 0,
        log_start: int = 0,
    ) -> Replica:
        producers = self.producers_class()
        return Replica(who, self.rules, log, high_watermark, producers, log_start=log_start)

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
            self.publish_next(who)

    def publish_next(self, who: BrokerId) -> None:
        event = self.controller.history[self.seen[who]]
        self.seen[who] += 1
        self.step(who, replace(event, min_insync_replicas=self.min_insync))

    def see_an_old_image(self) -> None:
        who = self.old.choice(BROKERS)
        event = self.old.choice(self.controller.history)
        epoch = self.replicas[who].partition.state.partition_epoch
        if who not in self.down and event.image.partition_epoch < epoch:
            self.step(who, event)

    def produce(self) -> None:
        for who in BROKERS:
            replica = self.replicas[who]
            refused = replica.partition.serving.append_refusal(-1) is not ErrorCode.NONE
            if who not in self.down and not refused and self.random.random() < 0.8:
                self.values += 1
                replica.append(self.now_ms, [self.values])
                self.check(who)

    def produce_sequenced(self) -> None:
        """The next batch, or, to another leader or for want of an answer, all again from the first.

        At most five are under way, as a producer promises.
        """
        who = self.some()
        partition = self.replicas[who].partition
        if who in self.down or partition.serving.append_refusal(-1) is not ErrorCode.NONE:
            return
        at = who, self.process[who], partition.state.leader_epoch
        is_elsewhere = bool(self.sent) and self.sent[-1][:3] != at
        if is_elsewhere or self.random.random() < 0.2:
            self.sequence = self.acknowledged
        if self.sequence - self.acknowledged < BATCHES_KEPT:
            required_offset = self.replicas[who].append_sequenced(self.now_ms, self.sequence)
            self.check(who)
            if required_offset is not None:
                self.sent.append(Sent(*at, self.sequence, required_offset))
                self.sequence += 1
            elif partition.state.leader_epoch == self.controller.image.leader_epoch:
                raise Loss(f"leader {who} takes {self.sequence} for out of order")

    def acknowledge(self) -> None:
        for sent in self.sent:
            partition = self.replicas[sent.who].partition
            state = partition.state
            leads_on = state.is_leader and state.leader_epoch == sent.leader_epoch
            is_alive = sent.who not in self.down and self.process[sent.who] == sent.process
            if is_alive and leads_on and state.high_watermark >= sent.required_offset:
                self.acknowledged = max(self.acknowledged, sent.sequence + 1)

    def delete_records(self) -> None:
        who = self.some()
        partition = self.replicas[who].partition
        wanted = self.random.choice((-1, self.random.randint(0, len(self.committed) + 1)))
        error_code, required = partition.serving.judge_deletion(wanted, ErrorCode.NONE)
        if who in self.down or error_code is not ErrorCode.NONE:
            return
        self.step(who, events.LogStartRose(log_start_offset=required))
        at = who, self.process[who], partition.state.leader_epoch
        self.deleting.append(Deleting(*at, required))

    def keep_log_starts(self) -> None:
        who = self.some()
        if who not in self.down:
            self.replicas[who].keep_log_start(self.now_ms)

    def answer_deletions(self) -> None:
        for one in self.deleting:
            partition = self.replicas[one.who].partition
            state = partition.state
            leads_on = state.is_leader and state.leader_epoch == one.leader_epoch
            is_alive = one.who not in self.down and self.process[one.who] == one.process
            if is_alive and leads_on and partition.serving.low_watermark() >= one.required:
                for who in BROKERS:
                    if who == one.who or not partition.state.brokers[who].fenced:
                        self.deleted[who] = max(self.deleted[who], one.required)

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

    def suspect(self) -> None:
        """Fence one that lives, or let it in again: the same process, with all that it has."""
        who = self.some()
        if who in self.down:
            return
        if self.controller.brokers[who].fenced:
            self.controller.unfence(who)
        else:
            self.controller.fence(who)

    def restart(self) -> None:
        if not self.down:
            return
        who = self.some(self.down)
        self.process[who] = self.controller.register(who)
        log = self.replicas[who].log
        if self.random.random() < 0.5 and who not in self.controller.image.isr:
            log.truncate_to(self.random.randint(0, len(log.records)))  # power was lost
        high_watermark = self.random.randint(0, self.replicas[who].partition.state.high_watermark)
        log_start = self.replicas[who].partition.state.kept_log_start_offset
        if len(log.records) < log_start:
            log.start_over_at(log_start)
        self.replicas[who] = self.replica(who, log, high_watermark, log_start)
        self.seen[who] = len(self.controller.history) - 1
        self.down.discard(who)
        self.publish()
        self.controller.unfence(who)

    def move_leader(self) -> None:
        self.controller.move_leader()

    # --- What must hold ---

    def step(self, who: BrokerId, event: events.Event) -> None:
        self.replicas[who].step(self.now_ms, event)
        partition = self.replicas[who].partition
        if not partition.needs_ticks():
            far_ms = self.now_ms + 2**40  # whatever the time is: else it waits for ever
            assert not partition.step(far_ms, events.Ticked())
        self.check(who)

    def check(self, who: BrokerId) -> None:
        replica = self.replicas[who]
        records, high_watermark = replica.log.records, replica.partition.state.high_watermark
        held, start = records[:high_watermark], replica.partition.state.log_start_offset
        common = min(len(held), len(self.committed))
        if held[start:common] != self.committed[start:common]:
            raise Loss(f"broker {who} shows {held[:common]}, not {self.committed[:common]}")
        if start < self.deleted[who]:
            raise Loss(f"broker {who} starts at {start}, and {self.deleted[who]} was the start")
        if not replica.partition.state.is_leader:
            if high_watermark > len(self.committed):
                raise Loss(f"follower {who} shows what no leader has committed")
            return
        is_current = replica.partition.state.leader_epoch == self.controller.image.leader_epoch
        if is_current and records[start : len(self.committed)] != self.committed[start:]:
            raise Loss(f"leader {who} lacks {self.committed[len(records) :]}")
        if len(held) > len(self.committed):
            self.committed += held[len(self.committed) :]
            shown = self.committed[start:]  # who started over knows no producer of older records
            sequences = [value - SEQUENCED for _, value in shown if value >= SEQUENCED]
            if sequences and sequences != [*range(sequences[0], sequences[-1] + 1)]:
                raise Loss(f"repeated, or out of order: {sequences}")

    def run(self) -> None:
        weights = {
            self.publish: 8,
            self.produce: 4,
            self.produce_sequenced: 4,
            self.acknowledge: 2,
            self.send_fetch: 8,
            self.serve_fetch: 8,
            self.take_reply: 8,
            self.alter_partition: 4,
            self.tick: 1,
            self.crash: 0.3,
            self.fence: 0.3,
            self.restart: 0.8,
            self.move_leader: 0.3,
            self.suspect: 0.4,
            self.delete_records: 1,
            self.keep_log_starts: 3,
            self.answer_deletions: 3,
        }
        for sometimes in (self.produce_sequenced, self.suspect, self.delete_records):
            weights[sometimes] *= self.random.randrange(2)  # in every other seed
        for happening in self.random.choices([*weights], [*weights.values()], k=STEPS):
            happening()
            if self.old.random() < 0.01:
                self.see_an_old_image()

    def contradict(self) -> None:
        """Tell each follower that its leader has nothing: a member cuts nothing committed."""
        for who in BROKERS:
            replica = self.replicas[who]
            state = replica.partition.state
            if isinstance(state.role, Follower) and state.is_member:
                nothing = events.LeaderDiverged(
                    leader_epoch=state.leader_epoch,
                    fetch_offset=state.log_end_offset,
                    last_fetched_epoch=replica.log.latest_epoch,
                    epoch=Epoch(0),
                    end_offset=Offset(0),
                )
                self.step(who, nothing)

    def heal(self) -> None:
        """Everybody returns; after a while all logs are equal and all is committed."""
        while self.down:
            self.restart()
        for who in BROKERS:
            self.controller.unfence(who)
        self.fetches.clear()
        self.replies.clear()
        for _ in range(60):
            self.now_ms += 10
            for who in BROKERS:
                while self.seen[who] < len(self.controller.history):
                    self.publish_next(who)
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
                self.replicas[who].keep_log_start(self.now_ms)


@pytest.mark.parametrize("first", range(0, tries(SEEDS), 50))
def test_nothing_committed_is_lost_and_the_replicas_converge(first: int) -> None:
    for seed in range(first, first + 50):
        cluster = Cluster(seed, min_insync=1 + seed % 2)
        cluster.run()
        cluster.heal()
        leader = cluster.controller.image.leader_id
        for replica in cluster.replicas.values():  # a leader's start may be a follower's past
            start = replica.partition.state.log_start_offset
            assert replica.log.records[start:] == cluster.committed[start:], seed
        starts = [replica.partition.state.log_start_offset for replica in cluster.replicas.values()]
        assert cluster.replicas[leader].partition.serving.low_watermark() == min(starts), seed
        assert {*cluster.controller.image.isr} == {*BROKERS}, seed
        cluster.contradict()


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
