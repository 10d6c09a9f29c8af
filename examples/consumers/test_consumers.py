"""Each program is killed before each of its steps, and started again; then invoices are counted.

A step is a line of `process`. An order without an invoice is lost, one with two is billed twice.
"""

from collections import Counter
from itertools import count
from typing import Any

import at_least_once
import at_most_once
import exactly_once
import pytest
from billing import Batch, Process, batches, open_clients

from quorumlog import LocalCluster
from quorumlog.client import TopicPartition
from quorumlog.client.sync import SyncConsumer, SyncProducer
from quorumlog.testing import Crash, MakeTopic, ManualNemesis, killed_at, read_topic

LOST, TWICE = "has no invoice", "is billed twice"


def process_a_batch(
    bootstrap: str, orders: str, invoices: str, process: Process, *settings: Any
) -> None:
    with open_clients(bootstrap, orders, *settings) as (consumer, producer):
        process(next(batches(consumer)), consumer, producer, invoices)


def process_the_rest(
    bootstrap: str, orders: str, invoices: str, process: Process, *settings: Any
) -> None:
    partition = TopicPartition(orders, 0)
    with open_clients(bootstrap, orders, *settings) as (consumer, producer):
        end = consumer.end_offsets([partition])[partition]
        while not (done := consumer.committed([partition])) or done[partition].offset < end:
            process(next(batches(consumer)), consumer, producer, invoices)


class Crashes:
    """Crashes a program, and finds the effects on the invoices."""

    def __init__(
        self, cluster: LocalCluster, make_topic: MakeTopic, nemesis: ManualNemesis
    ) -> None:
        self.cluster, self.make_topic, self.nemesis = cluster, make_topic, nemesis

    def check(
        self,
        process: Process,
        transactional_id: str | None = None,
        linger_ms: float = 5,
        *,
        allowed: set[str],
    ) -> None:
        """Fail unless the crashes have exactly the effects that are allowed."""
        orders, invoices = self.make_topic(), self.make_topic()
        program = (self.cluster.bootstrap, orders, invoices, process, transactional_id, linger_ms)
        crashes: list[Crash | None] = []  # by number of the order
        with SyncProducer(self.cluster.bootstrap, linger_ms=0) as shop:
            for step in count(1):
                numbers = range(len(crashes), len(crashes) + 2)
                shop.send_many(orders, [b"%d" % number for number in numbers]).result(30)
                self.nemesis.answer("Produce", "NOT_ENOUGH_REPLICAS", topic=invoices, times=1)
                crash = killed_at(step, process_a_batch, *program, within=[process])
                crashes += [crash] * len(numbers)
                process_the_rest(*program)
                if crash is None:
                    break
        invoiced = Counter(int(one.value or b"") for one in read_topic(self.cluster, invoices))
        found = set()
        for order, crash in enumerate(crashes):
            if invoiced[order] != 1:
                effect = TWICE if invoiced[order] else LOST
                assert effect in allowed, f"order {order} {effect}: {crash}"
                found.add(effect)
        assert found == allowed


@pytest.fixture
def crashes(
    quorumlog_cluster: LocalCluster, make_topic: MakeTopic, nemesis: ManualNemesis
) -> Crashes:
    return Crashes(quorumlog_cluster, make_topic, nemesis)


def test_at_most_once_loses_orders(crashes: Crashes) -> None:
    crashes.check(at_most_once.process, allowed={LOST})


def test_at_least_once_bills_twice(crashes: Crashes) -> None:
    crashes.check(at_least_once.process, allowed={TWICE})


def test_exactly_once_does_neither(crashes: Crashes) -> None:
    crashes.check(exactly_once.process, exactly_once.TRANSACTIONAL_ID, allowed=set())


# --- mistakes that these tests find ---


def commit_before_the_acknowledgement(
    batch: Batch, consumer: SyncConsumer, producer: SyncProducer, invoices: str
) -> None:
    for orders in batch.values():
        for order in orders:
            producer.send(invoices, order.value)
    consumer.commit()


def commit_beside_the_transaction(
    batch: Batch, consumer: SyncConsumer, producer: SyncProducer, invoices: str
) -> None:
    with producer.transaction():
        for orders in batch.values():
            for order in orders:
                producer.send(invoices, order.value)
    consumer.commit()


def test_a_commit_before_the_work_is_found(crashes: Crashes) -> None:
    with pytest.raises(AssertionError, match=LOST):
        crashes.check(at_most_once.process, allowed={TWICE})


def test_a_commit_before_the_acknowledgement_is_found(crashes: Crashes) -> None:
    with pytest.raises(AssertionError, match=LOST):
        crashes.check(commit_before_the_acknowledgement, linger_ms=10_000, allowed={TWICE})


def test_a_commit_beside_the_transaction_is_found(crashes: Crashes) -> None:
    with pytest.raises(AssertionError, match=TWICE):
        crashes.check(commit_beside_the_transaction, exactly_once.TRANSACTIONAL_ID, allowed=set())
