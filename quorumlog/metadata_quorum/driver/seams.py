"""What the driver drives, and what it is fed beside the core's own events."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from quorumlog.metadata_quorum.core import events
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.driver.active_controller import Ask
from quorumlog.metadata_quorum.driver.committed_image import CommittedImage
from quorumlog.metadata_quorum.io.disk_threads import DiskThreads
from quorumlog.metadata_quorum.log.election_store import ElectionStore
from quorumlog.metadata_quorum.log.metadata_log import MetadataLog
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.wire.codec.identifiers import BrokerId


class BrokerProcessDied(NamedTuple):
    """The process of this registration is gone: nobody listens on its control address."""

    broker_id: BrokerId
    broker_epoch: int


class Stopped(Exception):
    """The node takes part no more."""


class Responded(NamedTuple):
    """A response, and the bytes of the records beside it."""

    event: events.ResponseReceived
    records: bytes


Input = events.Event | Ask | BrokerProcessDied | Responded


class Transport(Protocol):
    """How requests reach the other voters."""

    async def call(
        self, address: str, request: object, *, timeout_ms: int
    ) -> tuple[Any, bytes | None]:
        """Return the response and the records beside it. Raises RpcFailed."""


class Watcher(Protocol):
    """Whoever must know who leads."""

    def leader_changed(self, leader_id: BrokerId) -> None:
        """NOBODY: nobody is known to lead."""

    def controller_claimed(self) -> None:
        """Learn that this node's controller is active now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the driver drives."""

    node_id: BrokerId
    quorum: Quorum
    log: MetadataLog
    elections: ElectionStore
    threads: DiskThreads
    committed: CommittedImage
    transport: Transport
    watcher: Watcher
    addresses: Callable[[BrokerId], str]  # of the voters' control listeners
    controller: ControllerSettings
    draw: Callable[[int], bytes]  # random bytes
