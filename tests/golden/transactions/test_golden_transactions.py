"""Stories of a transactional id, `x`, as golden scripts (`tests.support.golden`).

`<now_ms> <what> <arguments> name=value`; requests, writes and markers are numbered in order. `A`,
`B`: producers, as they know themselves; `1001:0`: a producer id and epoch.
"""

from pathlib import Path
from typing import Any, assert_never

import pytest

from quorumlog.broker.transactions.core import events
from quorumlog.broker.transactions.core.coordinator import TransactionCoordinator
from quorumlog.broker.transactions.core.effects import (
    AllocateProducerId,
    AnswerRequest,
    AppendRecords,
    Effect,
    SendMarkers,
)
from quorumlog.broker.transactions.core.records import TransactionMetadata, TransactionRecord
from quorumlog.broker.transactions.core.requests import (
    NO_PRODUCER,
    AddPartitionsResult,
    ProducerIdAndEpoch,
    ProducerResult,
    Request,
    Result,
)
from quorumlog.broker.transactions.core.states import TransactionState
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, TopicPartition
from tests.support import golden
from tests.support.transactions.coordination import (
    SETTINGS,
    abort,
    add,
    add_offsets,
    commit,
    init,
    verify,
)


class Story:
    def __init__(self) -> None:
        self.level, self.epoch = 2, 0
        self.log: list[TransactionRecord] = []
        self.writes: dict[int, tuple[TransactionRecord, ...]] = {}
        self.markers: list[SendMarkers] = []
        self.producers: dict[str, ProducerIdAndEpoch] = {}
        self.asked: list[str] = []  # by which producer
        self.lead(0)

    def lead(self, now_ms: int) -> list[Effect]:
        self.epoch += 1
        self.writes.clear()
        self.coordinator = TransactionCoordinator(SETTINGS, self.level)
        for record in self.log:
            self.coordinator.replay(record)
        self.coordinator.loaded(now_ms)
        self.coordinator.step(now_ms, events.BecameLeader(leader_epoch=Epoch(self.epoch)))
        return self.coordinator.step(now_ms, events.Ticked())

    def run(self, command: str) -> str:
        time, what, *words = command.split()
        names = [word for word in words if "=" not in word]
        values = dict(word.split("=") for word in words if "=" in word)
        now_ms = int(time)
        match what:
            case "level":  # of transaction.version, from the start
                self.level, self.epoch = int(names[0]), 0
                self.lead(now_ms)
                return ""
            case "history":  # a producer has that epoch: it was there long ago
                self.producers[names[0]] = self.producer(names[1])
                producer_id, epoch = self.producers[names[0]]
                metadata = TransactionMetadata(
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    transaction_timeout_ms=1000,
                    state=TransactionState.EMPTY,
                    last_update_ms=now_ms,
                )
                self.log.append(TransactionRecord(transactional_id="x", metadata=metadata))
                effects = self.lead(now_ms)
            case "failover":
                effects = self.lead(now_ms)
            case _:
                effects = self.coordinator.step(now_ms, self.event(what, names, values))
        return "\n".join([*(self.show(effect) for effect in effects), self.state()])

    def event(self, what: str, names: list[str], values: dict[str, str]) -> events.Event:
        event: events.Event
        match what:
            case "tick":
                event = events.Ticked()
            case "written":
                self.log += self.writes.pop(int(names[0]))
                event = events.WriteEnded(write_id=int(names[0]))
            case "failed":
                del self.writes[int(names[0])]
                event = events.WriteEnded(write_id=int(names[0]), error_code=ErrorCode[names[1]])
            case "allocated":
                event = events.ProducerIdAllocated(transactional_id="x", producer_id=int(names[0]))
            case "deleted":
                event = events.PartitionsDeleted(partitions=frozenset(map(partition, names)))
            case "marked":
                event = self.marked(int(names[0]), names[1:], values)
            case _:
                self.asked.append(names[0])
                request = self.request(what, names, values)
                event = events.RequestReceived(request_id=len(self.asked), request=request)
        return event

    def marked(
        self, number: int, names: list[str], values: dict[str, str]
    ) -> events.MarkersWritten:
        sent = self.markers[number - 1]
        errors = dict.fromkeys(map(partition, names), ErrorCode.NONE)
        errors |= {partition(where): ErrorCode[code] for where, code in values.items()}
        return events.MarkersWritten(
            transactional_id="x",
            prepared_ms=sent.prepared_ms,
            coordinator_epoch=sent.coordinator_epoch,
            errors=errors,
        )

    def request(self, what: str, names: list[str], values: dict[str, str]) -> Request:
        producer = self.producer(names[0])
        api: dict[str, Any] = {"api_version": int(values["api"])} if "api" in values else {}
        partitions = [partition(name) for name in names[1:]]
        request: Request
        match what:
            case "init":
                request = init(transaction_timeout_ms=1000, **api)
            case "init_again":
                request = init(producer, transaction_timeout_ms=1000, **api)
            case "add":
                request = add(producer, *partitions, **{"api_version": 5, **api})
            case "add_offsets":
                request = add_offsets(producer)
            case "verify":
                request = verify(producer, *partitions)
            case "commit":
                request = commit(producer, **api)
            case "abort":
                request = abort(producer, **api)
            case _:
                raise ValueError(what)
        return request

    def producer(self, name: str) -> ProducerIdAndEpoch:
        if ":" in name:
            producer_id, _, epoch = name.partition(":")
            return ProducerIdAndEpoch(int(producer_id), int(epoch))
        return self.producers.get(name, NO_PRODUCER)

    def show(self, effect: Effect) -> str:
        match effect:
            case AnswerRequest(request_id=request_id, result=result):
                return f"#{request_id} {self.hear(self.asked[request_id - 1], result)}"
            case AppendRecords(write_id=write_id, records=records):
                self.writes[write_id] = records
                return f"write {write_id}: " + "; ".join(map(show_record, records))
            case AllocateProducerId():
                return "allocate a producer id"
            case SendMarkers():
                self.markers.append(effect)
                kind = "commit" if effect.commit else "abort"
                by = f"coordinator_epoch={effect.coordinator_epoch} v{effect.transaction_version}"
                where = " ".join(map(str, effect.partitions))
                return f"markers {len(self.markers)}: {kind} {show(effect.producer)} {by} {where}"
            case _:
                assert_never(effect)

    def hear(self, name: str, result: Result) -> str:
        match result:
            case ErrorCode():
                return result.name
            case AddPartitionsResult(partitions=partitions):
                return " ".join(f"{where}={code.name}" for where, code in partitions.items())
            case ProducerResult():
                if result.producer == NO_PRODUCER:
                    return result.error_code.name
                if ":" not in name:
                    self.producers[name] = result.producer
                return f"{name} is {show(result.producer)}"
            case _:
                assert_never(result)

    def state(self) -> str:
        transaction = self.coordinator.transactions.get("x")
        if transaction is None or transaction.is_new:
            return "= nothing"
        under_way = (transaction.pending, transaction.pending_behind)
        pending = "".join(f" -> {one.value}" for one in under_way if one is not None)
        where = " ".join(map(str, transaction.metadata.partitions))
        shown = f"= {transaction.state.value}{pending} {show(transaction.producer)} {where}"
        return shown.strip()


def partition(name: str) -> TopicPartition:
    topic, _, index = name.rpartition("-")
    return TopicPartition(topic, int(index))


def show(producer: ProducerIdAndEpoch) -> str:
    return f"{producer.producer_id}:{producer.epoch}"


def show_record(record: TransactionRecord) -> str:
    metadata = record.metadata
    if metadata is None:
        return f"{record.transactional_id} gone"
    producer = f"{metadata.producer_id}:{metadata.producer_epoch}"
    follows = f" next {metadata.next_producer_id}" if metadata.next_producer_id >= 0 else ""
    where = " ".join(map(str, metadata.partitions))
    return f"{metadata.state.value} {producer}{follows} {where}".strip()


@golden.scripts_beside(__file__)
def test_story(script: Path, request: pytest.FixtureRequest) -> None:
    golden.check(script, Story().run, request)
