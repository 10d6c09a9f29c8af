"""Shop and warehouse are killed before each of their steps, and started again.

The item of an order is the number of the step. The broker answers the first request of each step
of the right shop with an error, although it has appended the message.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path

import inbox
import outbox
import pytest
from outbox import open_database, place_order, relay, transaction

from quorumlog import LocalCluster
from quorumlog.client import ConsumerRecord
from quorumlog.client.sync import SyncProducer
from quorumlog.testing import FreshTopic, ManualNemesis, killed_at, read_topic

Sell = Callable[[sqlite3.Connection, SyncProducer, str, str], None]
Receive = Callable[[sqlite3.Connection, ConsumerRecord], None]


def open_shop(file: str) -> closing[sqlite3.Connection]:
    return closing(open_database(file, outbox.SCHEMA))


def open_warehouse(file: str) -> closing[sqlite3.Connection]:
    return closing(open_database(file, inbox.SCHEMA))


def sell_by_outbox(
    database: sqlite3.Connection, producer: SyncProducer, topic: str, item: str
) -> None:
    place_order(database, item)
    relay(database, producer, topic)


def sell_once(file: str, bootstrap: str, topic: str, item: str, sell: Sell) -> None:
    with open_shop(file) as database, SyncProducer(bootstrap, linger_ms=0) as producer:
        sell(database, producer, topic, item)


def receive_all(file: str, messages: Sequence[ConsumerRecord], receive: Receive) -> None:
    with open_warehouse(file) as database:
        for message in messages:
            receive(database, message)


def check_outbox(
    cluster: LocalCluster, topic: str, nemesis: ManualNemesis, file: str, sell: Sell
) -> None:
    """Fail unless each order has a message, and each message an order, after every crash."""
    is_right = sell is sell_by_outbox
    steps = (place_order, relay) if is_right else (sell,)
    for step in count(1):
        if is_right:  # a mistake may be found before it sends a message
            nemesis.answer("Produce", "REQUEST_TIMED_OUT", topic=topic, after="appended", times=1)
        place = (file, cluster.bootstrap, topic, str(step), sell)
        crash = killed_at(step, sell_once, *place, within=steps)
        with open_shop(file) as shop, SyncProducer(cluster.bootstrap) as producer:
            relay(shop, producer, topic)
            orders = {item for (item,) in shop.execute("SELECT item FROM orders")}
        messages = {(one.value or b"").decode() for one in read_topic(cluster, topic)}
        assert orders <= messages, f"order {step} has no message: {crash}"
        assert messages <= orders, f"message {step} has no order: {crash}"
        if crash is None:
            break


def check_inbox(
    cluster: LocalCluster, topic: str, nemesis: ManualNemesis, file: str, receive: Receive
) -> None:
    """Fail unless each message is shipped once, although it is sent twice, after every crash."""
    with SyncProducer(cluster.bootstrap, linger_ms=0) as relay:
        for step in count(1):
            if step == 2:
                nemesis.kill("partition-leader")
            for _ in range(2):
                headers = [("message-id", b"shop-%d" % step)]
                relay.send_and_wait(topic, b"%d" % step, headers=headers)
            messages = read_topic(cluster, topic)[-2:]
            crash = killed_at(step, receive_all, file, messages, receive, within=[receive])
            receive_all(file, messages, receive)
            with open_warehouse(file) as warehouse:
                shipped = Counter(item for (item,) in warehouse.execute("SELECT * FROM shipments"))
            times = shipped[str(step)]
            assert times == 1, f"message {step} is shipped {times} times: {crash}"
            if crash is None:
                break


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "shop.db")


def test_orders_and_messages_agree(
    quorumlog_cluster: LocalCluster, topic: FreshTopic, nemesis: ManualNemesis, file: str
) -> None:
    check_outbox(quorumlog_cluster, topic, nemesis, file, sell_by_outbox)


def test_each_message_is_shipped_once(
    quorumlog_cluster: LocalCluster, topic: FreshTopic, nemesis: ManualNemesis, file: str
) -> None:
    check_inbox(quorumlog_cluster, topic, nemesis, file, inbox.receive)


# --- mistakes that these tests find ---


def store_then_send(
    database: sqlite3.Connection, producer: SyncProducer, topic: str, item: str
) -> None:
    database.execute("INSERT INTO orders (item) VALUES (?)", (item,))
    producer.send_and_wait(topic, item.encode())


def send_then_store(
    database: sqlite3.Connection, producer: SyncProducer, topic: str, item: str
) -> None:
    producer.send_and_wait(topic, item.encode())
    database.execute("INSERT INTO orders (item) VALUES (?)", (item,))


def receive_without_inbox(database: sqlite3.Connection, message: ConsumerRecord) -> None:
    inbox.ship(database, message)


def remember_in_a_transaction_of_its_own(
    database: sqlite3.Connection, message: ConsumerRecord
) -> None:
    with transaction(database):
        is_new = inbox.remember(database, message)
    if is_new:
        inbox.ship(database, message)


@pytest.mark.parametrize(
    ("mistake", "found"),
    [(store_then_send, "has no message: kill -9"), (send_then_store, "has no order: kill -9")],
    ids=["store-then-send", "send-then-store"],
)
def test_a_mistake_of_the_shop_is_found(
    mistake: Sell,
    found: str,
    quorumlog_cluster: LocalCluster,
    topic: FreshTopic,
    nemesis: ManualNemesis,
    file: str,
) -> None:
    with pytest.raises(AssertionError, match=found):
        check_outbox(quorumlog_cluster, topic, nemesis, file, mistake)


@pytest.mark.parametrize(
    ("mistake", "found"),
    [
        (receive_without_inbox, "is shipped 2 times: kill -9"),
        (remember_in_a_transaction_of_its_own, "is shipped 0 times: kill -9"),
    ],
    ids=["no-inbox", "two-transactions"],
)
def test_a_mistake_of_the_warehouse_is_found(
    mistake: Receive,
    found: str,
    quorumlog_cluster: LocalCluster,
    topic: FreshTopic,
    nemesis: ManualNemesis,
    file: str,
) -> None:
    with pytest.raises(AssertionError, match=found):
        check_inbox(quorumlog_cluster, topic, nemesis, file, mistake)
