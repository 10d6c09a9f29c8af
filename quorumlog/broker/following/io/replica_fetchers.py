"""The fetchers of all leaders, at their current addresses: one for each lane of a leader.

A lane has up to LANE_PARTITIONS partitions and its own fetch session. A session restarts when the
set of its partitions changes, so each must be small: else the creation of many partitions would
cost the square of their number, and block the event loop.

# DEVIATION: Kafka has `num.replica.fetchers` for each leader, of any size.
# docs/decisions/0023-idle-partitions.md
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from quorumlog.broker.following.io.replica_fetcher import ReplicaFetcher
from quorumlog.broker.following.log.followed_partition import FollowedPartition
from quorumlog.broker.partitions.core.roles import Follower
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.peer_addresses import PeerAddresses
from quorumlog.invariants import InvariantViolation, require
from quorumlog.lasting_condition import LastingCondition
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.tasks import Tasks, log_failure
from quorumlog.wire.codec.identifiers import BrokerId, Epoch

LANE_PARTITIONS: Final = 1_000

_Lane = tuple[BrokerId, int]  # a leader, and a number

_logger: Final = logging.getLogger(__name__)


class ReplicaFetchers:
    """Starts and stops fetchers: `follow`, `unfollow` collect changes; `publish` applies them."""

    def __init__(
        self, new_fetcher: Callable[..., ReplicaFetcher], peer_addresses: Mapping[int, str]
    ) -> None:
        """`new_fetcher` makes a fetcher of the leader at (host, port).

        `peer_addresses`: `host:port` of leaders, in place of the address that they advertise.
        """
        self._new_fetcher: Final = new_fetcher
        self._peer_addresses: Final = PeerAddresses(peer_addresses)
        self._followed: dict[_Lane, dict[PartitionDriver, FollowedPartition]] = {}
        self._lanes: dict[PartitionDriver, _Lane] = {}
        self._changed: set[_Lane] = set()
        self._image = ClusterImage()  # of the last `publish`
        self._is_stopped = False
        self._fetchers: dict[_Lane, ReplicaFetcher] = {}
        self._not_appended: Final = LastingCondition(_logger)
        self._stopping: Final = Tasks(log_failure(_logger, "closing the connections to a leader"))

    def follow(self, driver: PartitionDriver, leader_id: BrokerId, leader_epoch: Epoch) -> None:
        """Follow only this leader, only in this leader epoch."""
        self.unfollow(driver)
        lane = self._lanes[driver] = self._lane_with_room(leader_id)
        self._followed.setdefault(lane, {})[driver] = FollowedPartition(
            driver, leader_epoch, not_appended=self._not_appended
        )
        self._changed.add(lane)

    def _lane_with_room(self, leader_id: BrokerId) -> _Lane:
        number = 0
        while len(self._followed.get((leader_id, number), ())) >= LANE_PARTITIONS:
            number += 1
        return leader_id, number

    def unfollow(self, driver: PartitionDriver) -> None:
        """Stop following the leader of a partition."""
        lane = self._lanes.pop(driver, None)
        if lane is not None:
            del self._followed[lane][driver]
            self._changed.add(lane)

    def resume(self) -> None:
        """Apply the changes since the last `publish`, by its image; fetch at once.

        A change of the leader that waits for disk work comes after the `publish` of its image.
        """
        if self._changed and not self._is_stopped:
            self.publish(self._image)
        self.wake()

    def wake(self) -> None:
        """Fetch at once: the reason why a fetcher waits may be gone."""
        for fetcher in self._fetchers.values():
            fetcher.wake()

    def unanswering(self) -> tuple[BrokerId, ...]:
        """Return the leaders that leave a fetch unanswered, sorted."""
        return (*sorted({lane[0] for lane, one in self._fetchers.items() if one.is_unanswered()}),)

    def note_flush_ended(self, driver: PartitionDriver) -> None:
        """Report the end of a flush to the fetcher of this log, if any."""
        fetcher = self._fetcher_of(driver)
        if fetcher is not None:
            fetcher.note_flush_ended(driver)

    def touch(self, driver: PartitionDriver) -> None:
        """Have the fetcher of this partition, if any, check its position again."""
        fetcher = self._fetcher_of(driver)
        if fetcher is not None:
            fetcher.touch(driver)

    def _fetcher_of(self, driver: PartitionDriver) -> ReplicaFetcher | None:
        lane = self._lanes.get(driver)
        return None if lane is None else self._fetchers.get(lane)

    def check_progress(self, driver: PartitionDriver, role: Follower, *, is_due: bool) -> None:
        """Raise InvariantViolation if this follower waits, and no fetch of it will come.

        `is_due`: `publish` will be called. Tests and simulations call it.
        """
        at, lane = driver.topic_partition, self._lanes.get(driver)
        if lane is None or lane[0] != role.leader_id:
            raise InvariantViolation(f"{at}: its leader {role.leader_id} is followed")
        if lane in self._changed and is_due:
            return
        fetcher = self._fetchers.get(lane)
        if fetcher is not None:
            try:
                fetcher.check_progress(driver, driver.partition.state.leader_epoch)
            except InvariantViolation as violation:
                raise InvariantViolation(f"{at}: {violation}") from violation
            return
        broker = self._image.brokers.get(role.leader_id)
        is_unknown = broker is None or self._peer_addresses.of(broker) is None
        require(is_unknown, f"{at}: a fetcher of leader {role.leader_id}, which has an address")

    def publish(self, image: ClusterImage) -> None:
        """Start, redirect and stop fetchers by the followed partitions and the image."""
        self._image = image
        for lane in sorted(self._followed):
            leader_id, _ = lane
            broker = image.brokers.get(leader_id)
            fetcher = self._fetchers.get(lane)
            followed = self._followed[lane]
            address = None
            if broker is not None and followed:
                address = self._peer_addresses.of(broker)
            if fetcher is not None and fetcher.address != address:
                del self._fetchers[lane]
                self._stopping.start(fetcher.stop())
                fetcher = None
            if address is None:
                continue
            if fetcher is None:
                fetcher = self._fetchers[lane] = self._new_fetcher(address)
            elif lane not in self._changed:
                continue
            fetcher.set_followed(followed.values())
        self._changed.clear()

    async def stop(self) -> None:
        """Stop all fetchers, for good."""
        self._is_stopped = True
        for fetcher in self._fetchers.values():
            self._stopping.start(fetcher.stop())
        self._fetchers.clear()
        await self._stopping.join()
