"""Fake brokers that offer the administrative requests that a test gives them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from quorumlog.client import Admin, ErrorCode, TopicPartition
from quorumlog.wire.codec.message import Response, Struct
from quorumlog.wire.codec.messages import APIS
from quorumlog.wire.codec.messages.api_versions import ApiVersion, ApiVersionsResponse
from quorumlog.wire.codec.schemas import request_class, response_class
from tests.support.client.fake_cluster import SPOKEN
from tests.support.client.fake_group import VERSIONS, GroupCluster

Answer = Callable[[Any], Response]
U = TopicPartition("t", 1)
MOVED = ErrorCode.NOT_LEADER_OR_FOLLOWER
KEYS = {api.name: key for key, api in APIS.items()}


def built(kind: type[Struct], fields: dict[str, Any]) -> Any:
    """Return a struct from its fields, in which a dict stands for each inner struct."""
    types = {field.name: field.type for field in kind.FIELDS}

    def value_of(its_type: Any, value: Any) -> Any:
        if isinstance(value, list):
            return [value_of(its_type[0], one) for one in value]
        return built(its_type, value) if isinstance(value, dict) else value

    return kind(**{name: value_of(types[name], value) for name, value in fields.items()})


class AdminCluster(GroupCluster):
    """`offers` by API key: the newest version, and what answers it. `seen`: (broker, request)."""

    def __init__(self) -> None:
        super().__init__()
        self.offers: dict[int, tuple[int, Answer]] = {}
        self.seen: list[tuple[int, Any]] = []

    def offer(self, api: str, *answers: dict[str, Any], version: int | None = None) -> None:
        """Answer an API with the fields of each answer in turn; the last one stays."""
        key = KEYS[api]
        left: list[Response] = [built(response_class(key), answer) for answer in answers]

        def answer(_request: object) -> Response:
            return left.pop(0) if len(left) > 1 else left[0]

        newest = request_class(key).VERSIONS[-1] if version is None else version
        self.offers[key] = (newest, answer)

    def requests(self) -> list[Any]:
        return [request for _, request in self.seen]

    def handle(self, broker: int, api: int, request: Any, fault: object) -> Response | None:
        if api == 18:
            spoken = {**SPOKEN, **VERSIONS}
            spoken |= {key: newest for key, (newest, _) in self.offers.items()}
            keys = [ApiVersion(api_key=key, max_version=top) for key, top in spoken.items()]
            return ApiVersionsResponse(api_keys=keys)
        if api not in self.offers:
            return super().handle(broker, api, request, fault)
        self.seen.append((broker, request))
        return self.offers[api][1](request)


@asynccontextmanager
async def only_cluster() -> AsyncIterator[AdminCluster]:
    """Two brokers."""
    cluster = AdminCluster()
    for broker_id in (1, 2):
        await cluster.start(broker_id)
    try:
        yield cluster
    finally:
        await cluster.kill(*cluster.servers)


@asynccontextmanager
async def cluster_and_admin() -> AsyncIterator[tuple[AdminCluster, Admin]]:
    async with asyncio.timeout(20), only_cluster() as cluster, Admin(cluster.bootstrap) as admin:
        yield cluster, admin
