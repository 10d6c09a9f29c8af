"""The log directories of a node's broker, and the broker's registration with the controller."""

from collections.abc import Sequence

from quorumlog.broker.partitions.log.log_directories import LogDirectories
from quorumlog.broker.partitions.log.registrations import BrokerProcess
from quorumlog.chance import random_bytes
from quorumlog.invariants import some
from quorumlog.metadata_quorum.controller_client import BrokerRegistration
from quorumlog.node.config import NodeConfig
from quorumlog.node.dependencies import NodeDependencies
from quorumlog.node.identity import OwnDirectory, read_boot_id
from quorumlog.storage.io.disk import Disk
from quorumlog.wire.codec.identifiers import BrokerId


def log_directories(
    config: NodeConfig,
    directories: Sequence[OwnDirectory],
    disk: Disk,
    dependencies: NodeDependencies,
    announced: BrokerRegistration,
) -> LogDirectories:
    """Return the log directories; failed directories are included by their names only.

    `announced`: the registration of this process; the directories record its incarnation.
    """
    usable = []
    for path, directory_id in directories:
        if directory_id is not None:
            directory = dependencies.new_logs(disk, path, config.log)
            directory.directory_id = directory_id
            usable.append(directory)
    refused = [path for path, its_id in directories if its_id is None]
    process = BrokerProcess(incarnation_id=announced.incarnation_id, boot_id=announced.boot_id)
    return LogDirectories(usable, refused, process)


def registration(
    config: NodeConfig, directories: Sequence[OwnDirectory], dependencies: NodeDependencies
) -> BrokerRegistration:
    """Return the registration of this process's broker."""
    metadata_dir = str(config.log_dir)
    directory_id = next(its_id for path, its_id in directories if path == metadata_dir)
    return BrokerRegistration(
        broker_id=BrokerId(config.node_id),
        incarnation_id=random_bytes(16).hex(),
        host=config.advertised.host,
        port=config.advertised.port,
        control_address=config.control_address,
        rack=config.rack,
        directory_id=some(directory_id, "a node has a metadata log directory"),
        boot_id=read_boot_id(dependencies.boot_id_file),
        min_insync_replicas=config.broker.min_insync_replicas,
    )
