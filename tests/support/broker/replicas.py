"""Replicas without disks or sockets: partition cores over logs in memory, and their controller."""

from dataclasses import dataclass, field, replace
from typing import Any

from quorumlog.broker.partitions.core import effects, events
from quorumlog.broker.partitions.core.effects import AnswerFetch, Effect
from quorumlog.broker.partitions.core.events import Event
from quorumlog.broker.partitions.core.partition import KAFKA_RULES, Partition, PartitionRules
from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.metadata_quorum.image import BrokerImage, PartitionImage
from quorumlog.storage.core.leader_epochs import LeaderEpochs
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, Epoch, Offset
from quorumlog.wire.codec.records import BatchHeader
from tests.support.broker.produced import produced

BROKERS = tuple(map(BrokerId, (1, 2, 3)))
LAG_TIME_MS = 100
Record = tuple[int, int]  # leader epoch, value
SEQUENCED = 1 << 20  # a value from here on is a sequence number of the idempotent producer


def broker(broker_id: BrokerId, broker_epoch: int = 0, *, fenced: bool = False) -> BrokerImage:
    return BrokerImage(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        incarnation_id="",
        host="localhost",
        port=0,
        control_address="",
        fenced=fenced,
    )


ALL_ALIVE = {broker_id: broker(broker_id) for broker_id in BROKERS}


def image(
    leader_id: int,
    leader_epoch: int,
    partition_epoch: int,
    isr: tuple[int, ...],
    replicas: tuple[int, ...] = BROKERS,
) -> PartitionImage:
    return PartitionImage(
        leader_id=BrokerId(leader_id),
        leader_epoch=Epoch(leader_epoch),
        partition_epoch=Epoch(partition_epoch),
        replicas=tuple(map(BrokerId, replicas)),
        isr=tuple(map(BrokerId, isr)),
    )


def sequenced_in(records: list[Record], base_offset: int) -> list[BatchHeader]:
    return [
        produced(value - SEQUENCED)._replace(base_offset=base_offset + index)
        for index, (_, value) in enumerate(records)
        if value >= SEQUENCED
    ]


GONE: Record = (-1, -1)  # at an offset below the start of a log that started over


class MemoryLog:
    """Records in a list: offset i is at index i. An EpochHistory."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.epochs = LeaderEpochs()

    @property
    def latest_epoch(self) -> Epoch:
        return self.epochs.latest_epoch

    def end_offset_for(self, epoch: Epoch, log_end_offset: Offset) -> tuple[Epoch, Offset]:
        return self.epochs.end_offset_for(epoch, log_end_offset)

    def append(self, records: list[Record]) -> None:
        for record in records:
            if record[0] > self.latest_epoch:
                self.epochs = self.epochs.assigned(record[0], len(self.records))
            self.records.append(record)

    def truncate_to(self, offset: int) -> None:
        del self.records[offset:]
        self.epochs = self.epochs.truncated_from_end(offset)

    def start_over_at(self, offset: int) -> None:
        self.records = [GONE] * offset
        self.epochs = LeaderEpochs()


class Replica:
    """A core with its log; effects for the log are performed, the rest is kept for the test."""

    def __init__(
        self,
        broker_id: BrokerId,
        rules: PartitionRules = KAFKA_RULES,
        log: MemoryLog | None = None,
        high_watermark: int = 0,
        producers: ProducerStates | None = None,
        *,
        log_start: int = 0,
    ) -> None:
        self.log = log or MemoryLog()
        self.producers = ProducerStates() if producers is None else producers
        self.producers.rebuild(sequenced_in(self.log.records, 0))
        self.fetching: effects.StartFetching | None = None
        self.proposals: list[effects.ProposeIsr] = []
        self.partition = Partition(
            broker_id,
            self.log,
            replica_lag_time_max_ms=LAG_TIME_MS,
            log_start_offset=Offset(log_start),
            log_end_offset=Offset(len(self.log.records)),
            high_watermark=Offset(high_watermark),
            rules=rules,
        )

    def step(self, now_ms: int, event: Event) -> list[Effect]:
        done: list[Effect] = []
        for effect in self.partition.step(now_ms, event):
            done.append(effect)
            match effect:
                case effects.AssignEpoch(leader_epoch=epoch, start_offset=start):
                    self.log.epochs = self.log.epochs.assigned(epoch, start)
                case effects.TruncateTo(offset=offset):
                    self.log.truncate_to(offset)
                    self.producers.rebuild(sequenced_in(self.log.records, 0))
                    done += self.step(now_ms, events.LogTruncated(log_end_offset=offset))
                case effects.StartOverAt(offset=offset):
                    self.log.start_over_at(offset)
                    self.producers.rebuild([])
                    done += self.step(now_ms, events.LogStartedOver(offset=offset))
                case effects.AdvanceLogStart(offset=offset):
                    done += self.step(now_ms, events.LogStartRose(log_start_offset=offset))
                case effects.StartFetching():
                    self.fetching = effect
                case effects.StopFetching():
                    self.fetching = None
                case effects.ProposeIsr():
                    self.proposals.append(effect)
                case _:
                    pass
        return done

    def append(self, now_ms: int, values: list[int]) -> list[Effect]:
        self.log.append([(self.partition.state.leader_epoch, value) for value in values])
        return self.step(
            now_ms, events.RecordsAppended(log_end_offset=Offset(len(self.log.records)))
        )

    def append_sequenced(self, now_ms: int, sequence: int) -> int | None:
        """Return the offset after it, wherever it is; None: it was refused."""
        error_code, stored = self.producers.check(produced(sequence))
        if error_code is not ErrorCode.NONE:
            return None
        if stored is not None:
            return stored.last_offset + 1
        offset = len(self.log.records)
        self.append(now_ms, [SEQUENCED + sequence])
        self.producers.record(produced(sequence), offset, now_ms)
        return offset + 1

    def fetch_request(self, broker_epoch: int) -> events.FollowerFetched:
        return events.FollowerFetched(
            broker_id=self.partition.state.broker_id,
            broker_epoch=broker_epoch,
            leader_epoch=self.partition.state.leader_epoch,
            fetch_offset=self.partition.state.log_end_offset,
            last_fetched_epoch=self.log.latest_epoch,
            log_start_offset=self.partition.state.kept_log_start_offset,
        )

    def keep_log_start(self, now_ms: int) -> None:
        """Write the checkpoint: the log start does not fall below it at a restart."""
        start = self.partition.state.log_start_offset
        self.step(now_ms, events.LogStartKept(log_start_offset=start))
        self.log.epochs = self.log.epochs.truncated_from_start(start)

    def serve(self, now_ms: int, request: events.FollowerFetched, count: int) -> "FetchReply":
        answer = self.step(now_ms, request)[-1]
        assert isinstance(answer, AnswerFetch)
        is_served = answer.error_code is ErrorCode.NONE and answer.diverging is None
        offset = request.fetch_offset
        return FetchReply(
            request=request,
            answer=answer,
            records=self.log.records[offset : offset + count] if is_served else [],
            high_watermark=self.partition.state.high_watermark,
            log_start_offset=self.partition.state.log_start_offset,
        )

    def take(self, now_ms: int, reply: "FetchReply") -> list[Effect]:
        request, diverging = reply.request, reply.answer.diverging
        epoch, offset = request.leader_epoch, request.fetch_offset
        if reply.answer.error_code is ErrorCode.OFFSET_OUT_OF_RANGE:
            out_of_range = events.FetchOutOfRange(
                leader_epoch=epoch,
                fetch_offset=offset,
                last_fetched_epoch=request.last_fetched_epoch,
                log_start_offset=reply.log_start_offset,
            )
            return self.step(now_ms, out_of_range)
        if reply.answer.error_code is not ErrorCode.NONE:
            return []
        if not self.partition.accepts_answer(epoch, offset, request.last_fetched_epoch):
            return []
        if diverging is not None:
            diverged = events.LeaderDiverged(
                leader_epoch=epoch,
                fetch_offset=offset,
                last_fetched_epoch=request.last_fetched_epoch,
                epoch=diverging.epoch,
                end_offset=diverging.end_offset,
            )
            return self.step(now_ms, diverged)
        for batch in sequenced_in(reply.records, offset):
            self.producers.record(batch, batch.base_offset, now_ms)
        self.log.append(reply.records)
        answered = events.LeaderAnswered(
            leader_epoch=epoch,
            log_end_offset=Offset(len(self.log.records)),
            high_watermark=reply.high_watermark,
            log_start_offset=reply.log_start_offset,
        )
        return self.step(now_ms, answered)


@dataclass(frozen=True)
class FetchReply:
    """A leader's answer on its way."""

    request: events.FollowerFetched
    answer: AnswerFetch
    records: list[Record]
    high_watermark: Offset
    log_start_offset: Offset


@dataclass
class Controller:
    """The decisions of the metadata log: live brokers, leaders, granted ISRs."""

    image: PartitionImage
    brokers: dict[BrokerId, BrokerImage] = field(default_factory=lambda: dict(ALL_ALIVE))
    history: list[events.PartitionPublished] = field(default_factory=list)

    def commit(self) -> None:
        self.history.append(events.PartitionPublished(image=self.image, brokers=dict(self.brokers)))

    def _change(self, **changes: object) -> None:
        epoch = Epoch(self.image.partition_epoch + 1)
        self.image = replace(self.image, partition_epoch=epoch, **changes)  # type: ignore[arg-type]  # the names are PartitionImage's
        self.commit()

    def _elect(self, isr: tuple[BrokerId, ...], *, not_this: BrokerId = NO_LEADER) -> None:
        alive = [who for who in isr if not self.brokers[who].fenced and who != not_this]
        leader_id = alive[0] if alive else NO_LEADER
        self._change(isr=isr, leader_id=leader_id, leader_epoch=Epoch(self.image.leader_epoch + 1))

    def fence(self, who: BrokerId) -> None:
        self.brokers[who] = replace(self.brokers[who], fenced=True)
        isr = tuple(member for member in self.image.isr if member != who) or self.image.isr
        if self.image.leader_id == who:
            self._elect(isr)
        elif isr != self.image.isr:
            self._change(isr=isr)
        else:
            self.commit()

    def register(self, who: BrokerId) -> int:
        """A new process: fenced first, with a new epoch. Return the epoch."""
        self.fence(who)
        epoch = self.brokers[who].broker_epoch + 1
        self.brokers[who] = replace(self.brokers[who], broker_epoch=epoch)
        self.commit()
        return epoch

    def unfence(self, who: BrokerId) -> None:
        self.brokers[who] = replace(self.brokers[who], fenced=False)
        if self.image.leader_id == NO_LEADER and who in self.image.isr:
            self._elect(self.image.isr)
        else:
            self.commit()

    def move_leader(self) -> None:
        """An election for no reason; with one candidate only the epoch rises."""
        others = [who for who in self.image.isr if who != self.image.leader_id]
        if any(not self.brokers[who].fenced for who in others):
            self._elect(self.image.isr, not_this=self.image.leader_id)
        else:
            self._elect(self.image.isr)

    def decide(self, asked: effects.ProposeIsr, leader_id: BrokerId) -> events.IsrAnswered:
        def refuse(error_code: ErrorCode) -> events.IsrAnswered:
            return events.IsrAnswered(asked_epoch=asked.partition_epoch, error_code=error_code)

        now = self.image
        if now.leader_id != leader_id or asked.leader_epoch != now.leader_epoch:
            return refuse(ErrorCode.FENCED_LEADER_EPOCH)
        if asked.partition_epoch != now.partition_epoch:
            return refuse(ErrorCode.INVALID_UPDATE_VERSION)
        for member, epoch in asked.new_isr:
            known = self.brokers[member]
            is_known = member == leader_id or epoch == known.broker_epoch
            if known.fenced or not is_known:
                self._change(isr=now.isr)  # no copy of the proposal is granted later
                return refuse(ErrorCode.INELIGIBLE_REPLICA)
        self._change(isr=tuple(member for member, _ in asked.new_isr))
        return events.IsrAnswered(
            asked_epoch=asked.partition_epoch,
            error_code=ErrorCode.NONE,
            leader_epoch=self.image.leader_epoch,
            partition_epoch=self.image.partition_epoch,
            isr=self.image.isr,
        )


def fetched_by(broker_id: BrokerId, offset: int, **changes: int) -> events.FollowerFetched:
    """Return the fetch of a follower; in leader epoch 0, if no other is given."""
    defaults = {"broker_epoch": -1, "leader_epoch": 0, "last_fetched_epoch": -1}
    numbers: dict[str, Any] = {**defaults, "log_start_offset": -1, **changes}
    return events.FollowerFetched(broker_id=broker_id, fetch_offset=Offset(offset), **numbers)


def diverged(
    fetch_offset: int, end_offset: int, *, epoch: int = 0, last_fetched_epoch: int = 0
) -> events.LeaderDiverged:
    """Return the answer of the leader of epoch 1 that its log differs from this end on."""
    return events.LeaderDiverged(
        leader_epoch=Epoch(1),
        fetch_offset=Offset(fetch_offset),
        last_fetched_epoch=Epoch(last_fetched_epoch),
        epoch=Epoch(epoch),
        end_offset=Offset(end_offset),
    )


def out_of_range(
    fetch_offset: int, log_start: int, *, leader_epoch: int = 1, last_fetched_epoch: int = -1
) -> events.FetchOutOfRange:
    """Return the answer of a leader whose log starts there that it lacks this offset."""
    return events.FetchOutOfRange(
        leader_epoch=Epoch(leader_epoch),
        fetch_offset=Offset(fetch_offset),
        last_fetched_epoch=Epoch(last_fetched_epoch),
        log_start_offset=Offset(log_start),
    )
