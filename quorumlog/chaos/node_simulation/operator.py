"""The operator, who repairs partitions whose copies share a loss, as the nodes' log lines advise.

Other partitions must recover without an operator.
"""

from collections.abc import Collection, Mapping
from typing import Final

from quorumlog.chaos.back_ends.administrator import Administrator
from quorumlog.chaos.node_simulation.disk_faults import is_identified
from quorumlog.chaos.node_simulation.machine import Machine
from quorumlog.client import TopicPartition
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.storage.io.checkpoints import write_partition_metadata
from quorumlog.wire.codec.identifiers import TopicId

AFTER_S: Final = 8.0  # the time without faults before each action


async def repair(
    machines: Mapping[int, Machine],
    administrator: Administrator,
    image: ClusterImage,
    names: Collection[str],
) -> None:
    """Restore the topic ids of these partitions' directories, and elect leaders uncleanly."""
    leaderless = []
    for topic, topic_image in sorted(image.topics.items()):
        for index, partition in enumerate(topic_image.partitions):
            name = f"{topic}-{index}"
            if name not in names:
                continue
            for machine in machines.values():
                if not machine.is_ready:
                    _identify(machine, name, topic_image.topic_id)
            if partition.leader_id not in machines:
                leaderless.append(TopicPartition(topic, index))
    if leaderless:
        await administrator.elect_uncleanly(leaderless)


def _identify(machine: Machine, name: str, topic_id: TopicId) -> None:
    """Write a missing `partition.metadata` with the topic id, and restart the node."""
    for path in (f"{log_dir}/{name}" for log_dir in machine.log_dirs):
        if machine.disk.exists(path) and not is_identified(machine.disk, path, topic_id):
            machine.kill()
            write_partition_metadata(machine.disk, path, topic_id)
            machine.start()
