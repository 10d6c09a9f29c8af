"""The fields that a request, a record and an image share: declared once, and copied by name."""

from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from quorumlog.addresses import DEFAULT_LISTENER
from quorumlog.wire.codec.identifiers import BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The advertised address of one listener of a broker, with its security protocol (KIP-103)."""

    name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDetails:
    """The details of a broker process from its registration (KIP-631).

    `host` and `port`: the advertised address of the listener that the other brokers connect to.
    `endpoints`: all advertised listeners; empty if that listener is the only one, and has Kafka's
    default name.
    """

    broker_id: BrokerId
    incarnation_id: str
    host: str
    port: int
    endpoints: tuple[Endpoint, ...] = ()
    control_address: str  # `host:port` of the control listener
    rack: str | None = None
    directory_id: str | None = None  # of its metadata log's; None: registered before ids existed
    boot_id: str | None = None  # of its machine's current boot; None: it cannot be read
    min_insync_replicas: int = 1  # holds where it leads a topic without its own value

    def address_at(self, listener: str) -> tuple[str, int] | None:
        """Return the host and the port advertised for a listener's name; None: it has none."""
        if not self.endpoints:
            return (self.host, self.port) if listener == DEFAULT_LISTENER else None
        for endpoint in self.endpoints:
            if endpoint.name == listener:
                return endpoint.host, endpoint.port
        return None


def same_fields(source: Any, target: Any) -> dict[str, Any]:
    """Return the fields of a dataclass's value, by name, that the dataclass `target` has, too."""
    kind: Any = type(source)
    return {name: getattr(source, name) for name in _same_names(kind, target)}


@cache
def _same_names(source: type, target: type) -> tuple[str, ...]:
    names = {field.name for field in fields(target)}
    return tuple(field.name for field in fields(source) if field.name in names)
