"""The parts of a node that a test, a mutant or a simulation may replace."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quorumlog.broker.groups.core.rules import GROUP_RULES, GroupRules
from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.broker.partitions.core.partition import KAFKA_RULES, PartitionRules
from quorumlog.broker.partitions.log.dependencies import PartitionDependencies
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.server.api import ApiHandler
from quorumlog.broker.transactions.core.rules import SOUND, TransactionRules
from quorumlog.metadata_quorum.io.dependencies import REAL_DEPENDENCIES, QuorumDependencies
from quorumlog.node.identity import BOOT_ID_FILE, TextFile
from quorumlog.node.listeners import bind
from quorumlog.settings.listeners import Address
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.disk import Disk, RealDisk

if TYPE_CHECKING:
    from quorumlog.broker.authentication.core.session import SaslSession
    from quorumlog.broker.authorization.core.authorizer import Authorizer


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDependencies:
    """The defaults are the real parts. Others are trusted, without checks.

    partition_rules: the rules of every replica; a mutant of the chaos lab breaks one.
    handlers: the handler of each API, by API key.
    open_disk: opens the disk that holds `log.dirs`.
    new_logs: opens the logs of partitions, with the arguments of LogDirectory.
    new_dependencies: makes the dependencies of replicas, from the fields of PartitionDependencies.
    bind: binds a listener, from its setting's name and its address. Raises StartFailed.
    quorum: the parts of the metadata quorum and of its controller.
    group_rules: the rules of every group coordinator.
    transaction_rules: the rules of every transaction coordinator.
    boot_id_file: has the id of this boot of the machine.
    new_authorizer, new_session: make the authorizer, with the arguments of Authorizer, and the SASL
        session of a connection; None: the real ones, which a node without security does not load.

    Chance and wall-clock time belong to the whole process: `quorumlog.chance` and
    `quorumlog.clock` have one place each where they are replaced.
    """

    partition_rules: PartitionRules = KAFKA_RULES
    handlers: Mapping[int, ApiHandler] = field(default_factory=lambda: HANDLERS)
    open_disk: Callable[[], Disk] = RealDisk
    new_logs: Callable[[Disk, str, LogSettings], LogDirectory] = LogDirectory
    new_dependencies: Callable[..., PartitionDependencies] = PartitionDependencies
    bind: Callable[[str, Address], socket.socket] = bind
    quorum: QuorumDependencies = REAL_DEPENDENCIES
    group_rules: GroupRules = GROUP_RULES
    transaction_rules: TransactionRules = SOUND
    boot_id_file: TextFile = BOOT_ID_FILE
    new_authorizer: "Callable[..., Authorizer] | None" = None
    new_session: "Callable[..., SaslSession] | None" = None
