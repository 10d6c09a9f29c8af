"""A raw client that reads every partition from its beginning to its end after all faults."""

import asyncio
from typing import Final

from quorumlog.chaos.history.exchanges import FINAL, LATEST
from quorumlog.chaos.rude_clients.connection import RawConnection
from quorumlog.chaos.rude_clients.raw_client import RawClient, read_batches
from quorumlog.chaos.rude_clients.read_requests import (
    LOOKUP_EPOCHS_SINCE,
    OneFetch,
    fetch_fact,
    fetch_request,
    fetch_version,
    fetched_data,
    lookup_fact,
    lookup_request,
    lookup_version,
)

_BELIEVED_S: Final = 5.0  # after which an end that stays too low counts as the log's end


class FinalReader(RawClient):
    """Reads without a session, each fetch in another version."""

    async def run(self, timeout_s: float) -> bool:
        """Read all partitions; return whether each was read to an end that its leader named."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        left = [*range(self.partitions)]
        positions = dict.fromkeys(left, 0)
        believed_s = loop.time() + _BELIEVED_S
        try:
            while left and loop.time() < deadline_s:
                partition = left[0]
                connection = await self._leading(partition)
                is_done = False
                if connection is not None:
                    positions[partition], is_done = await self._read(
                        connection, partition, positions[partition]
                    )
                key = self.key(partition)
                is_short = positions[partition] <= self.history.furthest.get(key, -1)
                if is_done and (not is_short or loop.time() > believed_s):
                    left.pop(0)
                elif is_done or connection is None or connection.is_closed:
                    await self.pause()
            return not left
        finally:
            await self.view.close()

    async def _leading(self, partition: int) -> RawConnection | None:
        leader = self.view.leaders.get(partition)
        if leader is None or leader.epoch < 0:
            return None
        return await self.view.connection(leader.node)

    async def _read(
        self, connection: RawConnection, partition: int, position: int
    ) -> tuple[int, bool]:
        """Fetch once, then look up the end; return the next position, and whether it is the end."""
        epoch = self.view.leaders[partition].epoch
        one = OneFetch(partition, position, epoch, fetch_version(self, connection))
        self.begin(FINAL)
        answered = await connection.exchange(fetch_request(self, one), one.version)
        facts = [fetch_fact(self, one, answered)]
        data = fetched_data(answered, partition)
        if data is not None and data.error_code == 0:
            spans = read_batches(data.records)[1]
            position = spans[-1][1] + 1 if spans else position
        version = lookup_version(self, connection, least=LOOKUP_EPOCHS_SINCE)
        request = lookup_request(self, partition, LATEST, leader_epoch=epoch)
        looked = await connection.exchange(request, version)
        facts.append(lookup_fact(self, partition, LATEST, looked, leader_epoch=epoch))
        self.end(FINAL, facts)
        topics = [] if looked.response is None else looked.response.topics
        found = [one for topic in topics for one in topic.partitions]
        is_end = bool(found) and found[0].error_code == 0 and found[0].offset == position
        if not found or found[0].error_code:
            await self.pause()
        return position, is_end
