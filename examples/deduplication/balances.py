"""Payments become balances in a database, each once, without a transaction in Kafka.

python balances.py localhost:9092 payments balances.db

A record is identified by its partition and offset. The database stores the next offset of each
partition in the transaction that stores the result. So a record that is read again is recognized,
whatever happened in between, and even if two processes read the same partition.
"""

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

from quorumlog.client import ConsumerRecord
from quorumlog.client.sync import SyncConsumer

SCHEMA = """
CREATE TABLE IF NOT EXISTS balances (account TEXT PRIMARY KEY, cents INTEGER);
CREATE TABLE IF NOT EXISTS positions (
    topic TEXT, partition INTEGER, next_offset INTEGER, PRIMARY KEY (topic, partition)
);
"""


def open_database(file: str) -> sqlite3.Connection:
    """Return the database. No statement begins a transaction by itself."""
    database = sqlite3.connect(file, isolation_level=None, timeout=30)
    database.executescript(SCHEMA)
    return database


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Commit at the end of the block, roll back after an exception."""
    with database:
        database.execute("BEGIN IMMEDIATE")
        yield


def next_offset(database: sqlite3.Connection, topic: str, partition: int) -> int:
    """Return the offset behind the last applied record."""
    query = "SELECT next_offset FROM positions WHERE topic = ? AND partition = ?"
    row = database.execute(query, (topic, partition)).fetchone()
    return int(row[0]) if row else 0


def add_payment(database: sqlite3.Connection, payment: ConsumerRecord) -> None:
    """Change the balance of the account, which is the key, by the cents in the value."""
    database.execute(
        "INSERT INTO balances VALUES (?, ?) "
        "ON CONFLICT DO UPDATE SET cents = cents + excluded.cents",
        ((payment.key or b"").decode(), int(payment.value or b"")),
    )


def store_position(database: sqlite3.Connection, payment: ConsumerRecord) -> None:
    """Store that this record is applied."""
    database.execute(
        "INSERT OR REPLACE INTO positions VALUES (?, ?, ?)",
        (payment.topic, payment.partition, payment.offset + 1),
    )


def apply(database: sqlite3.Connection, payment: ConsumerRecord) -> None:
    """Apply a payment that is new: result and position in one transaction."""
    with transaction(database):
        if payment.offset >= next_offset(database, payment.topic, payment.partition):
            add_payment(database, payment)
            store_position(database, payment)


def main(bootstrap: str, payments: str, file: str) -> None:
    """Apply payments, for ever. The group's offsets may lag behind those in the database."""
    with (
        closing(open_database(file)) as database,
        SyncConsumer(bootstrap, group_id="balances", auto_offset_reset="earliest") as consumer,
    ):
        consumer.subscribe([payments])
        for payment in consumer:
            apply(database, payment)


if __name__ == "__main__":
    main(*sys.argv[1:])
