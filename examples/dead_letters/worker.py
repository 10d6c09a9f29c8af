"""Records that cannot be processed go to a topic of dead letters, with the reason in headers.

Two kinds of errors are kept apart. `Retriable`: the record is not at fault, and the next one would
fail as well, so wait; a dead letter would be wrong. Any other error is fatal: the record fails
again however often it is tried, and must not block the records behind it.
"""

import time
from collections.abc import Callable, Sequence

from quorumlog.client import ConsumerRecord, TopicPartition
from quorumlog.client.sync import SyncConsumer, SyncProducer

Batch = dict[TopicPartition, list[ConsumerRecord]]
Handle = Callable[[ConsumerRecord], None]

WAITS_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # together below max_poll_interval_ms


class Retriable(Exception):
    """A service that the work needs is not available now."""


def handle_with_retries(record: ConsumerRecord, handle: Handle, waits_s: Sequence[float]) -> None:
    """Handle a record; retry after each wait. Raises Retriable after the last, and fatal errors."""
    for wait_s in waits_s:
        try:
            handle(record)
        except Retriable:
            time.sleep(wait_s)
        else:
            return
    handle(record)


def reason(record: ConsumerRecord, error: Exception) -> list[tuple[str, bytes]]:
    """Return headers by which a person finds the record and its fault."""
    place = f"{record.topic}-{record.partition}@{record.offset}"
    return [("dead-letter-of", place.encode()), ("dead-letter-error", repr(error).encode())]


def process(
    batch: Batch,
    consumer: SyncConsumer,
    producer: SyncProducer,
    dead_letters: str,
    handle: Handle,
    *,
    waits_s: Sequence[float] = WAITS_S,
) -> None:
    """Handle records in order; commit when each is handled or an acknowledged dead letter.

    Raises Retriable, without a commit, if a service stays away: the program ends, and its next
    start continues with the same record.
    """
    for records in batch.values():
        for record in records:
            try:
                handle_with_retries(record, handle, waits_s)
            except Retriable:
                raise
            except Exception as error:  # noqa: BLE001 - the dead letter has it
                headers = [*record.headers, *reason(record, error)]
                producer.send_and_wait(dead_letters, record.value, record.key, headers=headers)
    consumer.commit()
