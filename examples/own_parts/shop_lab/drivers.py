"""A driver: quorumlog's client, whose batches are compressed."""

from dataclasses import replace

from quorumlog.chaos.drivers import client_driver
from quorumlog.chaos.drivers.driver import AT_ONCE, Batching, DriverProducer


class Lz4Driver(type(client_driver.DRIVER)):  # type: ignore[misc]  # the class of an object
    """quorumlog's own client; every batch is compressed by lz4."""

    async def producer(
        self, bootstrap: str, client_id: str, batching: Batching = AT_ONCE
    ) -> DriverProducer:
        """See Driver."""
        return await super().producer(bootstrap, client_id, replace(batching, compression="lz4"))


DRIVER = Lz4Driver()
