"""The parts of a node that a test, a mutant or a simulation may replace."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.broker.partitions.core.partition import KAFKA_RULES, PartitionRules
from quorumlog.broker.server.api import ApiHandler
from quorumlog.node.config import Address
from quorumlog.node.identity import BOOT_ID_FILE, TextFile
from quorumlog.node.listeners import bind
from quorumlog.storage.io.disk import Disk, RealDisk


@dataclass(frozen=True, slots=True, kw_only=True)
class Substitutes:
    """The defaults are the real parts. What replaces them is trusted: it is not checked.

    partition_rules: the rules of every replica; a mutant of the chaos lab breaks one.
    handlers: what answers each API, by its key.
    open_disk: opens the disk that holds `log.dirs`.
    bind: binds a listener, given its setting's name and its address. Raises StartFailed.
    socket_factory: makes the sockets of the requests to other nodes; None: aiohttp does.
    boot_id_file: tells the boots of this machine apart.

    Chance and wall-clock time are those of the whole process: `quorumlog.chance` and
    `quorumlog.clock` have one place each where they are replaced.
    """

    partition_rules: PartitionRules = KAFKA_RULES
    # A factory: Python 3.11 takes a mapping proxy for a mutable default.
    handlers: Mapping[int, ApiHandler] = field(default_factory=lambda: HANDLERS)
    open_disk: Callable[[], Disk] = RealDisk
    bind: Callable[[str, Address], socket.socket] = bind
    socket_factory: Callable[[Any], socket.socket] | None = None
    boot_id_file: TextFile = BOOT_ID_FILE
