"""A history for the transaction oracle, and helpers for the tests of its rules."""

import pytest

from quorumlog.broker.transactions.core.requests import (
    NO_PRODUCER,
    ProducerIdAndEpoch,
    Request,
)
from quorumlog.chaos.simulation.kernel.rules import Violation
from quorumlog.chaos.simulation.worlds.brokers.topic_lives import TopicLives
from quorumlog.chaos.simulation.worlds.entries import ABORTS, COMMITS, Entry
from quorumlog.chaos.simulation.worlds.transactions.instances import (
    Asking,
    Instance,
    Transaction,
)
from quorumlog.chaos.simulation.worlds.transactions.oracle import TransactionOracle
from quorumlog.chaos.simulation.worlds.transactions.requests import ProducerSettings
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
FIRST, SECOND = ProducerIdAndEpoch(7, 0), ProducerIdAndEpoch(7, 1)
NEVER_MS = 1_000_000
TOPIC_ID = TopicId(b"t" * 16)
COORDINATOR, SUCCESSOR = object(), object()
SETTINGS = ProducerSettings(
    transactional_id="x", version=2, timeout_ms=1000, is_careless=False, may_come_late=False
)
COMMITS_FIRST = SETTINGS.end(FIRST, commits=True)


def record(value: bytes, producer_id: int = 7) -> Entry:
    return Entry(0, value, 0, producer_id, is_transactional=True)


COMMIT, ABORT = record(COMMITS), record(ABORTS)
A0, A1, B0 = record(b"a:0"), record(b"a:1"), record(b"b:0")


class History:
    """The producer `first` of the id `x`, with the open transaction `a`; two partitions."""

    def __init__(self, expiration_ms: int = NEVER_MS) -> None:
        self.log: dict[TopicPartition, list[Entry]] = {T0: [], T1: []}
        self.clock_ms = 0
        self.topics = TopicLives()
        self.topics.create("t", TOPIC_ID)
        self.oracle = TransactionOracle(
            self.log,
            [T0, T1],
            self.topics,
            clocks_ms=lambda: [self.clock_ms],
            expiration_ms=expiration_ms,
        )
        self.first = self.begin(FIRST)
        self.open = self.oracle.began("a", self.first, FIRST)

    def begin(self, producer: ProducerIdAndEpoch) -> Instance:
        instance = Instance("x", f"{producer}", timeout_ms=1000)
        came = self.oracle.came_in("x", NO_PRODUCER, COORDINATOR)
        self.oracle.initialized(instance, producer, came)
        return instance

    def is_fenced(self, instance: Instance, transaction: Transaction | None = None) -> None:
        self.oracle.fenced(instance, transaction, "PRODUCER_FENCED", COORDINATOR)

    def asks(self, *, commits: bool) -> None:
        self.oracle.asks_to_end(self.open, commits=commits)

    def is_granted(self, request: Request, asking: Asking | None = None, *, came: int = 0) -> None:
        """Grant a request of the first producer."""
        asking = asking or self.oracle.asks(self.first)
        self.oracle.granted(self.first, asking, request, came)

    def ends(self, at: TopicPartition, *entries: Entry) -> None:
        """Commit records, the last of which may be a marker, and look at them."""
        self.log[at] += entries
        self.oracle.look()

    def committed(self) -> Transaction:
        """Let `a` be committed with two records."""
        self.asks(commits=True)
        self.oracle.acknowledged(self.open, [b"a:0", b"a:1"])
        self.ends(T0, A0, COMMIT)
        self.ends(T1, A1, COMMIT)
        self.oracle.told(self.open, commits=True)
        return self.open


def broken(rule: str) -> "pytest.RaisesExc[Violation]":
    return pytest.raises(Violation, match=f"^{rule}: ")
