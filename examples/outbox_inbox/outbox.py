"""The shop: an order is stored together with the message about it, and a relay sends the message.

A database and Kafka have no common transaction. Whoever writes to both can die in between: then
there is an order without a message, or a message about an order that was never stored. So the order
and its message are rows of one transaction. The relay sends at least once; the inbox drops repeats.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from quorumlog.client.sync import SyncProducer

# AUTOINCREMENT: the ids of deleted messages are not given to new messages.
SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT);
CREATE TABLE IF NOT EXISTS outbox (message_id INTEGER PRIMARY KEY AUTOINCREMENT, item TEXT);
"""


def open_database(file: str, schema: str) -> sqlite3.Connection:
    """Return the database. No statement begins a transaction by itself."""
    database = sqlite3.connect(file, isolation_level=None, timeout=30)
    database.executescript(schema)
    return database


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Commit at the end of the block, roll back after an exception."""
    with database:
        database.execute("BEGIN IMMEDIATE")
        yield


def place_order(database: sqlite3.Connection, item: str) -> None:
    """Store an order, and the message about it."""
    with transaction(database):
        database.execute("INSERT INTO orders (item) VALUES (?)", (item,))
        database.execute("INSERT INTO outbox (item) VALUES (?)", (item,))


def relay(database: sqlite3.Connection, producer: SyncProducer, topic: str) -> None:
    """Send the messages in their order; delete each after its acknowledgement.

    One process relays: two would send every message twice, and not in order.
    """
    query = "SELECT message_id, item FROM outbox ORDER BY message_id"
    for message_id, item in database.execute(query).fetchall():
        headers = [("message-id", b"shop-%d" % message_id)]
        producer.send_and_wait(topic, item.encode(), headers=headers)
        database.execute("DELETE FROM outbox WHERE message_id = ?", (message_id,))
