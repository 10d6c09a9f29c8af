"""The parts of a metadata quorum that a mutant or a simulation may replace."""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.storage.io.log import Log


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumParts:
    """The defaults are the real parts.

    socket_factory: makes the sockets of requests, as aiohttp.TCPConnector takes it; None: aiohttp.
    """

    quorum: type[Quorum] = Quorum
    controller: type[Controller] = Controller
    new_log: type[Log] = Log
    socket_factory: Callable[[Any], socket.socket] | None = None


REAL_PARTS = QuorumParts()
