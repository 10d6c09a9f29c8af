"""Serves GET /metrics of one node. A scrape changes no state, and shares the loop with requests."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import IPv6Address, ip_address
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from aiohttp import web

from quorumlog.clock import monotonic_ms
from quorumlog.metadata_quorum.image import PartitionImage
from quorumlog.node.metrics.broker_families import (
    Replicas,
    exported_families,
    quota_families,
    request_families,
    traffic_families,
    waiting_families,
)
from quorumlog.node.metrics.cluster_families import Cluster, quorum_families
from quorumlog.node.metrics.exposition import (
    OPEN_METRICS,
    TEXT,
    Family,
    accepts_open_metrics,
    head,
    lines,
)
from quorumlog.node.metrics.group_families import Groups
from quorumlog.node.metrics.process_families import LoopShare, process_families
from quorumlog.node.node_broker import NodeBroker

if TYPE_CHECKING:
    from quorumlog.node.node import Node

SAMPLES_AT_ONCE: Final = 500
SLICE_S: Final = 0.003  # of the event loop: then requests are handled


class Endpoint:
    """One scrape at a time; the next one waits."""

    def __init__(self, node: "Node") -> None:
        self._node: Final = node
        self._scraping: Final = asyncio.Lock()
        self._share: Final = LoopShare(node.created_s)

    async def respond(self, request: web.Request) -> web.Response:
        """Return all families in the format of the Accept header.

        A client from another machine must show the secret of the control listener, if it has one.
        """
        if not is_local(request.remote):
            self._node.quorum.check_secret(request)
        is_open_metrics = accepts_open_metrics(request.headers.get("Accept", ""))
        async with self._scraping:
            body = await self._body(is_open_metrics=is_open_metrics)
        kind = OPEN_METRICS if is_open_metrics else TEXT
        return web.Response(body=body, headers={"Content-Type": kind})

    async def _body(self, *, is_open_metrics: bool) -> bytes:
        loop = asyncio.get_running_loop()
        written: list[str] = []
        ends_s = loop.time() + SLICE_S
        for family in await self._families():
            written.append(head(family, is_open_metrics=is_open_metrics))
            samples = iter(family.samples)
            while some := [*islice(samples, SAMPLES_AT_ONCE)]:
                written.append(lines(family.name, some))
                if loop.time() >= ends_s:
                    await asyncio.sleep(0)
                    ends_s = loop.time() + SLICE_S
        if is_open_metrics:
            written.append("# EOF\n")
        return "".join(written).encode()

    async def _families(self) -> Iterable[Family]:
        """Count replicas, partitions and groups; return the families, whose samples are lazy."""
        node = self._node
        quorum, image, broker = node.quorum, node.quorum.image, node.broker
        is_active = quorum.is_active_controller
        found: list[Iterator[Family]] = [
            process_families(node, self._share),
            quorum_families(quorum.describe(), image),
        ]
        cluster = Cluster(image)
        if "controller" in node.config.roles:
            await _pausing(cluster.count())
            found.append(cluster.controller_families(node.elections, is_active=is_active))
        if is_active:
            found.append(cluster.exported_families())
        leaderless = cluster.leaderless if is_active else []
        if broker is not None:
            found += await self._of_broker(broker, leaderless)
        elif len(leaderless) <= node.config.broker.metrics_partitions_max:
            found.append(exported_families([], leaderless))
        return chain.from_iterable(found)

    async def _of_broker(
        self, broker: NodeBroker, leaderless: Sequence[tuple[str, PartitionImage]]
    ) -> list[Iterator[Family]]:
        most = broker.replicas.settings.metrics_partitions_max
        replicas = Replicas(broker, most)
        await _pausing(replicas.count())
        groups = Groups(broker, self._node.config.peer_kafka)
        await _pausing(groups.count())
        await groups.look_up_ends()
        found = [
            traffic_families(broker),
            request_families(broker),
            quota_families(broker),
            waiting_families(broker),
            replicas.families(),
            groups.families(with_partitions=groups.offset_count <= most),
        ]
        telemetry = broker.server.context.telemetry
        if telemetry is not None:
            from quorumlog.node.metrics.client_families import client_families

            found.append(client_families(telemetry, monotonic_ms()))
        if replicas.are_shown:
            found += [replicas.partition_families(), exported_families(replicas.led, leaderless)]
        return found


async def _pausing(steps: Iterator[None]) -> None:
    for _ in steps:
        await asyncio.sleep(0)


def is_local(address: str | None) -> bool:
    """Whether a client is on this machine."""
    if address is None:
        return False
    host = ip_address(address.partition("%")[0])
    mapped = host.ipv4_mapped if isinstance(host, IPv6Address) else None  # `::ffff:127.0.0.1`
    return (mapped or host).is_loopback
