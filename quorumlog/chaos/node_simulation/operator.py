"""The operator, who repairs partitions whose copies share a loss, as the nodes' log lines advise.

Other partitions must recover without an operator.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from quorumlog.chaos.back_ends.administrator import Administrator
from quorumlog.chaos.node_simulation.damage import is_identified
from quorumlog.chaos.node_simulation.machine import Machine
from quorumlog.client import TopicPartition
from quorumlog.metadata_quorum.image import ClusterImage, PartitionImage
from quorumlog.storage.io.checkpoints import write_partition_metadata
from quorumlog.wire.codec.identifiers import TopicId

AFTER_S: Final = 8.0  # the time without faults before each action


class Operator:
    """The operator of one run."""

    def __init__(self, machines: Mapping[int, Machine], administrator: Administrator) -> None:
        self._machines: Final = machines
        self._administrator: Final = administrator

    async def act(self, image: ClusterImage, names: Collection[str]) -> None:
        """Restore the topic ids of these partitions' directories, and elect leaders uncleanly."""
        leaderless = []
        for at, topic_id, partition in _partitions(image):
            name = f"{at.topic}-{at.partition}"
            if name not in names:
                continue
            for machine in self._machines.values():
                if not machine.is_ready:
                    _identify(machine, name, topic_id)
            if partition.leader_id not in self._machines:
                leaderless.append(at)
        if leaderless:
            await self._administrator.elect_uncleanly(leaderless)


def _identify(machine: Machine, name: str, topic_id: TopicId) -> None:
    """Write a missing `partition.metadata` with the topic id, and restart the node."""
    for path in (f"{log_dir}/{name}" for log_dir in machine.log_dirs):
        if machine.disk.exists(path) and not is_identified(machine.disk, path, topic_id):
            machine.kill()
            write_partition_metadata(machine.disk, path, topic_id)
            machine.start()


def _partitions(image: ClusterImage) -> Iterator[tuple[TopicPartition, TopicId, PartitionImage]]:
    for name, topic in sorted(image.topics.items()):
        for index, partition in enumerate(topic.partitions):
            yield TopicPartition(name, index), topic.topic_id, partition
