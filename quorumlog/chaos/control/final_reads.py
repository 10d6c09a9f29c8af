"""The final reads of a history: by quorumlog's own client, from beginning to end."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from quorumlog.chaos.drivers.client_driver import ClientDriver
from quorumlog.chaos.drivers.driver import DriverConsumer, Record
from quorumlog.chaos.history import HistoryWriter
from quorumlog.chaos.workloads.readers import Readers
from quorumlog.chaos.workloads.workload import LaneOptions, Setup
from quorumlog.client.sync import SyncAdmin
from quorumlog.client.sync.loop_thread import LoopThread

_READERS: Final = 2
_TIMEOUT_S: Final = 30.0


class _NumberingConsumer:
    """A consumer that replaces the values of records by their numbers."""

    def __init__(self, consumer: DriverConsumer, number_of: Callable[[bytes], int]) -> None:
        self._consumer: Final = consumer
        self._number_of: Final = number_of

    async def assign(self, topic: str, partitions: Sequence[int]) -> None:
        """Assign these partitions, from their beginning."""
        await self._consumer.assign(topic, partitions)

    async def poll(self, timeout_ms: int) -> list[Record]:
        """Return the next records, with numbers instead of values."""
        return [
            record._replace(value=str(self._number_of(record.value)).encode())
            for record in await self._consumer.poll(timeout_ms)
        ]

    async def end_offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return the high watermark of each partition."""
        return await self._consumer.end_offsets(topic, partitions)

    async def close(self) -> None:
        """Release all resources."""
        await self._consumer.close()


class _NumberingDriver(ClientDriver):
    """quorumlog's client, for reading. `protection`: its arguments for TLS and SASL."""

    def __init__(self, number_of: Callable[[bytes], int], protection: Mapping[str, Any]) -> None:
        super().__init__()
        self.protection = protection
        self._number_of: Final = number_of

    async def consumer(self, bootstrap: str, client_id: str) -> DriverConsumer:  # type: ignore[override]
        """Create a consumer. Raises ConnectionError if no broker answers."""
        return _NumberingConsumer(await super().consumer(bootstrap, client_id), self._number_of)


def read_to_the_end(
    history: HistoryWriter,
    *,
    client: Mapping[str, Any],
    keys: Iterable[str],
    first_process: int,
    number_of: Callable[[bytes], int],
) -> None:
    """Read the topics of these keys to their ends, twice, as processes from `first_process`.

    `client`: arguments of clients of the cluster, such as LocalCluster.own_client returns.
    Missing topics, and records that cannot be read in time, are left out: the verdict is then not
    valid.
    """
    topics = sorted({key.rpartition("-")[0] for key in keys})
    protection = {**client}
    bootstrap = protection.pop("bootstrap_servers")
    with SyncAdmin(**client) as admin:
        there_are = admin.list_topics()
        known = admin.describe_topics([topic for topic in topics if topic in there_are])
    loop = LoopThread.acquire(history)
    try:
        for place, (name, topic) in enumerate(sorted(known.items())):
            setup = Setup(
                driver=_NumberingDriver(number_of, protection),
                bootstrap=bootstrap,
                topic=name,
                partitions=len(topic.partitions),
                replication_factor=1,
                seed=0,
                options=LaneOptions(
                    producers=first_process + place * _READERS, consumers=0, final_readers=_READERS
                ),
                history=history,
            )
            loop.run(Readers(setup).final_reads(_TIMEOUT_S))
    finally:
        loop.release(history)
