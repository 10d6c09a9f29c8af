"""The addresses at which a broker reaches the other brokers, and its connections to them."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from quorumlog.addresses import host_and_port
from quorumlog.broker.settings import BrokerSettings
from quorumlog.metadata_quorum.image import BrokerImage
from quorumlog.wire.io.connection import NODE_SOFTWARE_NAME, KafkaConnection
from quorumlog.wire.io.security import ConnectionSecurity

PeerConnect = Callable[[str, int], Awaitable[KafkaConnection]]


class PeerAddresses:
    """The advertised addresses, except for those that are set: proxies may be in between."""

    def __init__(self, set_addresses: Mapping[int, str]) -> None:
        """`set_addresses`: `host:port`, by broker id."""
        self._set: Final = {
            broker_id: host_and_port(address) for broker_id, address in set_addresses.items()
        }

    def of(self, broker: BrokerImage) -> tuple[str, int]:
        """Return the host and the port of a registered broker."""
        return self._set.get(broker.broker_id, (broker.host, broker.port))


def connecting(
    client_id: str, security: ConnectionSecurity, settings: BrokerSettings
) -> PeerConnect:
    """Return the function that connects to another broker. It raises as KafkaConnection.open.

    `security`: of the listener for other brokers.
    """

    def connect(host: str, port: int) -> Awaitable[KafkaConnection]:
        return KafkaConnection.open(
            host,
            port,
            client_id=client_id,
            software_name=NODE_SOFTWARE_NAME,
            request_timeout_ms=settings.replica_socket_timeout_ms,
            security=security,
        )

    return connect
