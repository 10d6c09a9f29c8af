"""What every handler may use: the broker's parts, and which connection asks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quorumlog.broker.core.response_memory import ResponseAccount
from quorumlog.broker.core.settings import BrokerSettings
from quorumlog.broker.io.image_watch import ImageWatch
from quorumlog.metadata_quorum.controller_client import ControllerClient
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.wire.codec.identifiers import BrokerId

if TYPE_CHECKING:
    from quorumlog.broker.handlers.api import ApiHandler
    from quorumlog.broker.io.group_service import GroupService
    from quorumlog.broker.io.producer_ids import ProducerIds
    from quorumlog.broker.io.replica_manager import ReplicaManager


@dataclass(slots=True, kw_only=True)
class BrokerContext:
    """Assembled once per node; each connection has a copy with its own last two fields."""

    broker_id: BrokerId
    cluster_id: str
    settings: BrokerSettings
    metadata: ImageWatch
    replicas: "ReplicaManager"
    groups: "GroupService"
    producer_ids: "ProducerIds"
    controller: ControllerClient
    handlers: Mapping[int, "ApiHandler"]  # by API key: what is answered, and advertised
    now_ms: Callable[[], int]  # wall clock, ms since 1970
    client_host: str = ""  # the peer's address
    account: ResponseAccount | None = None  # what the peer was answered and has not taken

    @property
    def image(self) -> ClusterImage:
        """The newest committed metadata that this broker acts on."""
        return self.metadata.image
