"""The producer without an event loop."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Unpack

from quorumlog.client.io.delivery import Delivery
from quorumlog.client.producer import Producer, SendOptions
from quorumlog.client.records import RecordMetadata
from quorumlog.client.settings import BootstrapServers, ProducerOptions, with_servers
from quorumlog.client.sync.blocking_client import Blocking, blocking, on_loop
from quorumlog.client.sync.loop_thread import LoopThread


class SyncDelivery:
    """The future of one record of a SyncProducer."""

    def __init__(self, delivery: Delivery, loop: LoopThread) -> None:
        self._delivery: Final = delivery
        self._loop: Final = loop

    def done(self) -> bool:
        """Return whether the record is acknowledged or failed: `result` does not block then."""
        return self._delivery.done()

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Wait until the record is acknowledged. Raises KafkaError, or TimeoutError."""
        if self._delivery.done():
            return self._delivery.result()
        return self._loop.run(_await(self._delivery), timeout_s)


async def _await(delivery: Delivery) -> RecordMetadata:
    return await delivery


class SyncProducer(Blocking[Producer]):
    """Producer without an event loop: `with SyncProducer("host:port") as producer: ...`."""

    _holds_records = True

    @with_servers
    def __init__(
        self, bootstrap_servers: BootstrapServers, **options: Unpack[ProducerOptions]
    ) -> None:
        super().__init__(Producer(bootstrap_servers, **options))

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        **options: Unpack[SendOptions],
    ) -> SyncDelivery:
        """Buffer a record; `result()` of the delivery waits until it is acknowledged."""
        return SyncDelivery(self._run(self._client.send(topic, value, key, **options)), self._loop)

    send_and_wait = blocking(Producer.send_and_wait)
    flush = blocking(Producer.flush)
    partitions_for = blocking(Producer.partitions_for)

    init_transactions = blocking(Producer.init_transactions)
    begin_transaction = on_loop(Producer.begin_transaction)
    send_offsets_to_transaction = blocking(Producer.send_offsets_to_transaction)
    commit_transaction = blocking(Producer.commit_transaction)
    abort_transaction = blocking(Producer.abort_transaction)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit at the end of the block; abort if an exception leaves it."""
        earlier = self._run(_transactions(self._client))
        try:
            self.begin_transaction()
            yield
            self.commit_transaction()
        except BaseException as error:
            if self._is_open:  # else closing has aborted the transaction
                self._run(_abort_after(self._client, error, earlier))
            raise


async def _transactions(producer: Producer) -> int:
    return producer._transactor().transactions.number  # noqa: SLF001 - ours


async def _abort_after(producer: Producer, error: BaseException, earlier: int) -> None:
    """Abort an open transaction after `error`, if its number is above `earlier`."""
    transactor = producer._transactor()  # noqa: SLF001 - ours
    if transactor.transactions.number > earlier:
        await transactor.abort_after(error)
