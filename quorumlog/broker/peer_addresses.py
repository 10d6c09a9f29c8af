"""The addresses at which a broker reaches the other brokers."""

from collections.abc import Mapping
from typing import Final

from quorumlog.addresses import host_and_port
from quorumlog.metadata_quorum.image import BrokerImage


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
