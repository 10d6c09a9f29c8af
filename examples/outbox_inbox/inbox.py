"""The warehouse: the id of a message is stored together with the shipment that it causes.

Offsets do not recognize a message that was sent twice, since it has two of them. Its id does.
"""

import sqlite3

from outbox import transaction

from quorumlog.client import ConsumerRecord

SCHEMA = """
CREATE TABLE IF NOT EXISTS inbox (message_id BLOB PRIMARY KEY);
CREATE TABLE IF NOT EXISTS shipments (item TEXT);
"""


def remember(database: sqlite3.Connection, message: ConsumerRecord) -> bool:
    """Store the id of a message; return whether it is new."""
    message_id = dict(message.headers)["message-id"]
    stored = database.execute("INSERT OR IGNORE INTO inbox VALUES (?)", (message_id,))
    return stored.rowcount == 1


def ship(database: sqlite3.Connection, message: ConsumerRecord) -> None:
    """Store a shipment."""
    item = (message.value or b"").decode()
    database.execute("INSERT INTO shipments VALUES (?)", (item,))


def receive(database: sqlite3.Connection, message: ConsumerRecord) -> None:
    """Ship the item of a message, unless it was received before."""
    with transaction(database):
        if remember(database, message):
            ship(database, message)
