"""A raw client's connections, and the leaders in its metadata."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NamedTuple

from quorumlog.chaos.rude_clients.connection import RawConnection
from quorumlog.wire.codec.identifiers import NO_LEADER
from quorumlog.wire.codec.message import ZERO_UUID, Request
from quorumlog.wire.codec.messages.metadata import MetadataRequest, MetadataRequestTopic
from quorumlog.wire.io.security import PLAINTEXT, ConnectionSecurity

TOPIC_IDS_SINCE: Final = 10  # Metadata
_BOOTSTRAP: Final = -1  # the node of a connection to a bootstrap server
MAIN: Final = "main"
SECOND: Final = "second"


class Leader(NamedTuple):
    """The leader of a partition; `epoch` is -1 if the metadata do not have it."""

    node: int
    epoch: int


@dataclass(slots=True)
class ClusterView:
    """One client's metadata of one topic.

    number: returns the number of a new connection, unique in the run.
    """

    bootstrap: str
    topic: str
    rng: Random
    now_ns: Callable[[], int]
    number: Callable[[], int]
    security: ConnectionSecurity = PLAINTEXT
    leaders: dict[int, Leader] = field(default_factory=dict)
    addresses: dict[int, tuple[str, int]] = field(default_factory=dict)
    topic_id: bytes = ZERO_UUID
    _open: dict[tuple[int, str], RawConnection] = field(default_factory=dict)

    async def refresh(self) -> bool:
        """Request the metadata of any node, in any version; return whether one answered."""
        nodes = [*self.addresses, _BOOTSTRAP]
        self.rng.shuffle(nodes)
        for node in nodes:
            connection = await self.connection(node)
            if connection is None:
                continue
            version = self.draw_version(connection, MetadataRequest, favours=TOPIC_IDS_SINCE)
            asked = MetadataRequestTopic(name=self.topic)
            request = MetadataRequest(topics=[asked], allow_auto_topic_creation=False)
            answered = await connection.exchange(request, version)
            if answered.response is not None:
                self._receive(answered.response, version)
                return True
        return False

    def _receive(self, response: Any, version: int) -> None:
        self.addresses = {one.node_id: (one.host, one.port) for one in response.brokers}
        for topic in response.topics:
            if topic.error_code or topic.name != self.topic:
                continue
            if version >= TOPIC_IDS_SINCE:
                self.topic_id = topic.topic_id
            self.leaders = {
                one.partition_index: Leader(one.leader_id, one.leader_epoch)
                for one in topic.partitions
                if one.leader_id != NO_LEADER
            }

    async def connection(self, node: int, slot: str = MAIN) -> RawConnection | None:
        """Return an open connection to a node; None: it does not answer."""
        known = self._open.get((node, slot))
        if known is not None and not known.is_closed:
            return known
        if node == _BOOTSTRAP:
            host, _, port = self.rng.choice(self.bootstrap.split(",")).rpartition(":")
            address = host, int(port)
        elif node in self.addresses:
            address = self.addresses[node]
        else:
            return None
        opened = await RawConnection.open(
            *address,
            node=node,
            number=self.number(),
            now_ns=self.now_ns,
            rng=self.rng,
            security=self.security,
        )
        known = self._open.get((node, slot))
        if opened is not None and known is not None and not known.is_closed:
            await opened.close()  # another task was faster
            return known
        if opened is not None:
            self._open[node, slot] = opened
        return opened

    def malformed(self) -> Iterator[str]:
        """Yield, once, the reason of each connection that a malformed response has ended."""
        for connection in self._open.values():
            if connection.malformed:
                yield f"node {connection.node}: {connection.malformed}"
                connection.malformed = ""

    def draw_version(
        self,
        connection: RawConnection,
        request: type[Request[Any]],
        *,
        least: int = 0,
        below: int = 1 << 15,
        favours: int | None = None,
    ) -> int:
        """Return a version that both sides have, from `least` on and below `below`.

        favours: most draws are from this version on.
        """
        theirs = connection.versions.get(request.API_KEY, range(0))
        both = [one for one in request.VERSIONS if one in theirs and least <= one < below]
        newer = [one for one in both if favours is not None and one >= favours]
        return self.rng.choice(newer if newer and self.rng.random() < 0.8 else both)

    async def close(self) -> None:
        """Close all connections."""
        for connection in self._open.values():
            await connection.close()
