"""A broker with an authorizer, whose ACLs and client a test sets at once."""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from quorumlog.broker.authorization.access_control import AccessControl
from quorumlog.broker.authorization.core.authorizer import Authorizer
from quorumlog.broker.guards.registry import guarded
from quorumlog.broker.settings import BrokerSettings
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.metadata_quorum.image.acls import (
    CLUSTER_NAME,
    AclOperation,
    AclResourceType,
    PatternType,
    PermissionType,
)
from quorumlog.metadata_quorum.image.records import AclBinding
from quorumlog.wire.codec.message import Response, Struct
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.broker.authorization_table import ID, Body
from tests.support.groups.single_broker import SETTINGS, SingleBroker, TestController, single_broker

ADMIN, ALICE = "User:admin", "User:alice"
_RESOURCES = {
    "T": (AclResourceType.TOPIC, "t", PatternType.PREFIXED),
    "G": (AclResourceType.GROUP, "g", PatternType.LITERAL),
    "X": (AclResourceType.TRANSACTIONAL_ID, "x", PatternType.LITERAL),
    "C": (AclResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL),
}
EVERYTHING = tuple(f"{letter} ALL" for letter in _RESOURCES)


def acl(
    right: str,
    *,
    allows: bool = True,
    name: str | None = None,
    principal: str = ALICE,
    prefixed: bool | None = None,
) -> AclBinding:
    """Return the ACL of a right as in the table, for Alice."""
    letter, operation = right.split()
    kind, default, pattern = _RESOURCES[letter]
    if prefixed is not None or name is not None:
        pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    return AclBinding(
        resource_type=kind,
        resource_name=default if name is None else name,
        pattern_type=pattern,
        principal=principal,
        host="*",
        operation=AclOperation[operation],
        permission_type=PermissionType.ALLOW if allows else PermissionType.DENY,
    )


class Guarded:
    """A broker with an authorizer. Connections that are opened later are those of `principal`."""

    def __init__(self, broker: SingleBroker) -> None:
        self.broker = broker
        self._acls: frozenset[AclBinding] = frozenset()
        self.access = AccessControl(Authorizer(super_users={ADMIN}), self.image)
        served = broker.server.context  # requests of the broker to itself keep the bare handlers
        guards = guarded(served.handlers)
        vars(broker.server)["context"] = replace(served, handlers=guards, access=self.access)

    def image(self) -> ClusterImage:
        image = self.broker.context.image
        return replace(image, access=replace(image.access, acls=self._acls))

    def permit(self, *rights: str, but: Iterable[str] = ()) -> None:
        """Let Alice have exactly these rights; `but`: rights that are denied to her."""
        self.use(*map(acl, rights), *(acl(right, allows=False) for right in but))

    def use(self, *acls: AclBinding) -> None:
        self._acls = frozenset(acls)

    async def connect(self, principal: str = ALICE) -> KafkaConnection:
        self.broker.server.context.principal = principal
        return await KafkaConnection.open("127.0.0.1", self.broker.port, client_id="test")


@asynccontextmanager
async def guarded_broker(
    directory: Path,
    settings: BrokerSettings = SETTINGS,
    features: Mapping[str, int] | None = None,
    *,
    has_real_verifier: bool = False,
) -> AsyncIterator[Guarded]:
    controller = TestController()
    controller.image = replace(controller.image, features=features or {})
    async with single_broker(
        directory, settings, controller, has_real_verifier=has_real_verifier
    ) as broker:
        yield Guarded(broker)


def built(shape: type[Any], values: Body, topic_id: bytes) -> Any:
    """Return a message from plain values; ID stands for `topic_id`."""
    types = {field.name: field.type for field in shape.FIELDS}
    return shape(
        **{
            name: _value(types[name], value, topic_id)
            for name, value in values.items()
            if name in types
        }
    )


def _value(kind: Any, value: Any, topic_id: bytes) -> Any:
    if value is ID:
        return topic_id
    if isinstance(value, list):
        return [_value(kind[0], one, topic_id) for one in value]
    return built(kind, value, topic_id) if isinstance(value, dict) else value


def errors_in(response: Response | Struct, path: str = "") -> dict[str, set[int]]:
    """Return the error codes other than NONE, by the path of their field."""
    found: dict[str, set[int]] = {}
    for name in response.__slots__:
        value, place = getattr(response, name), f"{path}{name}"
        if name.endswith("error_code") and value:
            found.setdefault(place, set()).add(value)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Struct):
                for inner, codes in errors_in(one, f"{place}.").items():
                    found.setdefault(inner, set()).update(codes)
    return found
