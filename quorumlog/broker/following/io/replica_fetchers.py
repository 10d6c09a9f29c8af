"""The fetchers of all leaders: one per leader, at its current address."""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from quorumlog.broker.following.io.replica_fetcher import ReplicaFetcher
from quorumlog.broker.following.log.followed_partition import FollowedPartition
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.tasks import Tasks, log_failure
from quorumlog.wire.codec.identifiers import BrokerId, Epoch

_logger: Final = logging.getLogger(__name__)


class ReplicaFetchers:
    """`follow` and `unfollow` collect changes; `publish` puts them into effect."""

    def __init__(
        self,
        new_fetcher: Callable[..., ReplicaFetcher],
        peer_addresses: Mapping[int, str],
    ) -> None:
        """`new_fetcher` makes a fetcher of the leader at (host, port).

        `peer_addresses`: `host:port` of leaders that are not reached where they advertise.
        """
        self._new_fetcher: Final = new_fetcher
        self._peer_addresses: Final = {
            peer_id: (address.rpartition(":")[0], int(address.rpartition(":")[2]))
            for peer_id, address in peer_addresses.items()
        }
        self._followed: dict[BrokerId, dict[PartitionDriver, FollowedPartition]] = {}
        self._leaders: dict[PartitionDriver, BrokerId] = {}
        self._changed: set[BrokerId] = set()
        self._fetchers: dict[BrokerId, ReplicaFetcher] = {}
        self._stopping: Final = Tasks(log_failure(_logger, "closing the connections to a leader"))

    def follow(self, driver: PartitionDriver, leader_id: BrokerId, leader_epoch: Epoch) -> None:
        """Follow this leader only, in this epoch only."""
        self.unfollow(driver)
        self._leaders[driver] = leader_id
        self._followed.setdefault(leader_id, {})[driver] = FollowedPartition(driver, leader_epoch)
        self._changed.add(leader_id)

    def unfollow(self, driver: PartitionDriver) -> None:
        """Follow no leader."""
        leader_id = self._leaders.pop(driver, None)
        if leader_id is not None:
            del self._followed[leader_id][driver]
            self._changed.add(leader_id)

    def wake(self) -> None:
        """Fetch at once: what kept a fetcher from fetching may be over."""
        for fetcher in self._fetchers.values():
            fetcher.wake()

    def note_flush_ended(self, driver: PartitionDriver) -> None:
        """Let the fetcher of this log, if one waits for its flush, fetch on."""
        leader_id = self._leaders.get(driver)
        fetcher = None if leader_id is None else self._fetchers.get(leader_id)
        if fetcher is not None:
            fetcher.note_flush_ended(driver)

    def publish(self, image: ClusterImage) -> None:
        """Start, redirect and stop fetchers by the followed partitions and the image."""
        for leader_id in sorted(self._followed):
            broker = image.brokers.get(leader_id)
            fetcher = self._fetchers.get(leader_id)
            followed = self._followed[leader_id]
            address = None
            if broker is not None and followed:
                address = self._peer_addresses.get(leader_id, (broker.host, broker.port))
            if fetcher is not None and fetcher.address != address:
                del self._fetchers[leader_id]
                self._stopping.start(fetcher.stop())
                fetcher = None
            if address is None:
                continue
            if fetcher is None:
                fetcher = self._fetchers[leader_id] = self._new_fetcher(address)
            elif leader_id not in self._changed:
                continue
            fetcher.set_followed(followed.values())
        self._changed.clear()

    async def stop(self) -> None:
        """Stop all."""
        for fetcher in self._fetchers.values():
            self._stopping.start(fetcher.stop())
        self._fetchers.clear()
        await self._stopping.join()
