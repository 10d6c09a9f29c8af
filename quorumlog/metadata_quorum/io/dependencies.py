"""The parts of a metadata quorum that a mutant or a simulation may replace."""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quorumlog.chance import random_fraction
from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.metadata_quorum.driver.driver import Driver
from quorumlog.metadata_quorum.settings import MetadataQuorumSettings
from quorumlog.storage.io.log import Log


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumDependencies:
    """The parts; the defaults are the real ones.

    socket_factory: makes the sockets of requests, as aiohttp.TCPConnector takes it; None: aiohttp.
    """

    quorum: type[Quorum] = Quorum
    controller: type[Controller] = Controller
    new_log: type[Log] = Log
    driver: type[Driver] = Driver
    socket_factory: Callable[[Any], socket.socket] | None = None

    def make_quorum(self, settings: MetadataQuorumSettings, configured: VoterSet) -> Quorum:
        """Make the core of a node with these configured voters."""
        return self.quorum(
            node_id=settings.node_id,
            voters=configured,
            settings=settings.quorum,
            random_fraction=random_fraction,
            directory_id=settings.directory_id,
            address=settings.control_address,
            bootstrap=len(settings.bootstrap),
            auto_join=settings.quorum.controller_quorum_auto_join_enable,
        )


REAL_DEPENDENCIES = QuorumDependencies()
