"""`transform` without an event loop."""

from collections.abc import Callable
from itertools import chain
from typing import Any

from quorumlog.client import transforms
from quorumlog.client.records import ConsumerRecord, ProducerRecord
from quorumlog.client.sync.blocking_client import client_of, run
from quorumlog.client.sync.consumer import SyncConsumer
from quorumlog.client.sync.producer import SyncProducer
from quorumlog.client.transforms import POLL_MS, Polled, Replays, Results


def transform(
    consumer: SyncConsumer[Any, Any],
    producer: SyncProducer[Any, Any],
    function: Callable[[ConsumerRecord[Any, Any]], Results],
    *,
    max_records: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> int:
    """Send the results of `function` for each record that is read, exactly once.

    As `quorumlog.client.transform`. The function runs in the calling thread, the serializers and
    interceptors of the producer on the clients' event loop. An exception in the calling thread
    (Ctrl-C) ends the call, and the open transaction.
    """
    consumer_client, producer_client = client_of(consumer), client_of(producer)
    transforms.check_settings(consumer_client.settings, producer_client.settings)
    replays, count = Replays(producer_client.settings), 0

    async def finish(polled: Polled, results: list[ProducerRecord[Any, Any]]) -> bool:
        error = await transforms.move(consumer_client, producer_client, polled, results)
        await replays.note(error)
        return error is None

    async def rewind(polled: Polled) -> None:
        transforms.rewind(consumer_client, polled)  # on the loop: no partition is lost meanwhile

    run(producer, transforms.settle(producer_client))
    while not stop():
        polled: Polled = {}
        try:
            polled = consumer.poll(POLL_MS, max_records)
            given = map(function, chain.from_iterable(polled.values()))
            results = [*chain.from_iterable(map(transforms.listed, given))]
        except BaseException:
            run(consumer, rewind(polled))
            raise
        if polled:
            is_moved = run(producer, finish(polled, results))
            count += sum(map(len, polled.values())) if is_moved else 0
    return count
