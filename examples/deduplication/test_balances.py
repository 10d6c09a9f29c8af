"""The program is killed before each step of `apply`; then all payments are read again.

Each crash has an account of its own, with two payments of 100 cents.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from balances import add_payment, apply, next_offset, open_database, store_position, transaction

from quorumlog import LocalCluster
from quorumlog.client import ConsumerRecord
from quorumlog.client.sync import SyncProducer
from quorumlog.testing import FreshTopic, ManualNemesis, killed_at, read_topic

Apply = Callable[[sqlite3.Connection, ConsumerRecord], None]


def apply_all(file: str, payments: list[ConsumerRecord], apply: Apply) -> None:
    with closing(open_database(file)) as database:
        for payment in payments:
            apply(database, payment)


def check(
    cluster: LocalCluster, topic: str, nemesis: ManualNemesis, file: str, apply: Apply
) -> None:
    """Fail unless each account has its 200 cents, after every crash."""
    with SyncProducer(cluster.bootstrap, linger_ms=0) as bank:
        for step in count(1):
            account = f"account {step}"
            if step == 2:
                nemesis.kill("partition-leader")
            bank.send_many(topic, [b"100", b"100"], [account.encode()] * 2).result(60)
            payments = read_topic(cluster, topic)
            crash = killed_at(step, apply_all, file, payments[-2:], apply, within=[apply])
            apply_all(file, payments, apply)  # the group's offsets are lost: from the beginning
            with closing(open_database(file)) as database:
                balances = dict(database.execute("SELECT * FROM balances").fetchall())
            cents = balances.get(account, 0)
            assert cents == 200, f"{account} has {cents} cents of 200: {crash}"
            if crash is None:
                break


def test_each_payment_counts_once(
    quorumlog_cluster: LocalCluster, topic: FreshTopic, nemesis: ManualNemesis, tmp_path: Path
) -> None:
    check(quorumlog_cluster, topic, nemesis, str(tmp_path / "balances.db"), apply)


# --- mistakes that this test finds ---


def apply_without_positions(database: sqlite3.Connection, payment: ConsumerRecord) -> None:
    add_payment(database, payment)


def store_the_position_afterwards(database: sqlite3.Connection, payment: ConsumerRecord) -> None:
    if payment.offset >= next_offset(database, payment.topic, payment.partition):
        with transaction(database):
            add_payment(database, payment)
        with transaction(database):
            store_position(database, payment)


def store_the_position_before(database: sqlite3.Connection, payment: ConsumerRecord) -> None:
    if payment.offset >= next_offset(database, payment.topic, payment.partition):
        with transaction(database):
            store_position(database, payment)
        with transaction(database):
            add_payment(database, payment)


@pytest.mark.parametrize(
    ("mistake", "found"),
    [
        (apply_without_positions, "account 2 has 300 cents of 200: kill -9"),
        (store_the_position_afterwards, "has 300 cents of 200: kill -9"),
        (store_the_position_before, "has 100 cents of 200: kill -9"),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_a_mistake_is_found(
    mistake: Apply,
    found: str,
    quorumlog_cluster: LocalCluster,
    topic: FreshTopic,
    nemesis: ManualNemesis,
    tmp_path: Path,
) -> None:
    with pytest.raises(AssertionError, match=found):
        check(quorumlog_cluster, topic, nemesis, str(tmp_path / "balances.db"), mistake)
