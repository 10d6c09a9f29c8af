"""The whole examination: each bootstrap address, each advertised address, the client's settings.

The addresses are judged from this machine: a client elsewhere may resolve other names.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from quorumlog.addresses import address_text, host_and_port
from quorumlog.doctor.client_settings import ClusterFacts, check
from quorumlog.doctor.findings import Finding
from quorumlog.doctor.probes import Probe, Reached, probe
from quorumlog.wire.io.security import PLAINTEXT, ConnectionSecurity

SKEW_MAX_MS: Final = 5_000
_NEEDS: Final[Mapping[int, tuple[str, int, str]]] = {
    0: ("Produce", 7, "producers"),
    1: ("Fetch", 11, "consumers"),
    2: ("ListOffsets", 3, "consumers"),
    3: ("Metadata", 6, "all clients"),
    8: ("OffsetCommit", 5, "consumers in groups"),
    9: ("OffsetFetch", 4, "consumers in groups"),
    10: ("FindCoordinator", 2, "consumers in groups"),
    11: ("JoinGroup", 5, "consumers in groups"),
    12: ("Heartbeat", 3, "consumers in groups"),
    14: ("SyncGroup", 3, "consumers in groups"),
    22: ("InitProducerId", 1, "idempotent producers"),
}
"""API key -> name, the version that common clients still speak, and the clients that need it.

The versions are those of KafkaJS 2.2, the oldest of the common clients that is still installed:
librdkafka, Sarama, franz-go and the Java client speak them and newer ones (KIP-896).
"""
_REPLICA_SETTINGS: Final = (
    "default.replication.factor",
    "min.insync.replicas",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """The result. `brokers`: host:port as advertised, by broker id."""

    cluster_id: str | None = None
    brokers: Mapping[int, str] = field(default_factory=dict)
    skew_ms: int | None = None
    findings: tuple[Finding, ...] = ()


async def examine(
    bootstrap: Sequence[tuple[str, int]],
    settings: Mapping[str, str],
    security: ConnectionSecurity = PLAINTEXT,
) -> Examination:
    """Probe the bootstrap addresses, then every advertised one; check the client's `settings`.

    `security`: the client's TLS and login.
    """
    first = await asyncio.gather(*(probe(host, port, None, security) for host, port in bootstrap))
    views = [one for one in first if one.metadata is not None]
    brokers = _advertised(views)
    reached = await asyncio.gather(
        *(
            probe(*host_and_port(address), broker_id, security)
            for broker_id, address in brokers.items()
        )
    )
    advertised = dict(zip(brokers, reached, strict=True))
    cluster_ids = [one.metadata.cluster_id for one in views if one.metadata is not None]
    findings = [
        *(finding for one in first for finding in _of_bootstrap(one, settings)),
        *_of_clusters(views),
        *_of_brokers(advertised, cluster_ids, [host for host, _ in bootstrap]),
    ]
    every = [*views, *reached]
    answering = [one for one in reached if one.configs]
    facts = ClusterFacts(
        brokers=len(brokers),
        configs=answering[0].configs if answering else {},
        api_keys=frozenset().union(*(one.api_versions for one in views)),
        is_plain=any(not one.has_tls for one in views),
        is_tls=any(one.has_tls or one.reached is Reached.TLS for one in first),
    )
    findings += _of_versions(every)
    findings += _of_replicas(facts)
    skews = [one.skew_ms for one in every if one.skew_ms is not None]
    skew_ms = min(skews, key=abs, default=None)
    findings += _of_quorum(every)
    findings += _of_clock(skew_ms)
    findings += check(settings, facts)
    return Examination(
        cluster_id=cluster_ids[0] if cluster_ids else None,
        brokers=brokers,
        skew_ms=skew_ms,
        findings=tuple(dict.fromkeys(findings)),
    )


def _advertised(views: Sequence[Probe]) -> dict[int, str]:
    """Return the advertised addresses by broker id, from the first view that names the broker."""
    found: dict[int, str] = {}
    for view in views:
        for broker in view.metadata.brokers if view.metadata is not None else ():
            found.setdefault(broker.node_id, address_text(broker.host, broker.port))
    return dict(sorted(found.items()))


def _of_bootstrap(one: Probe, settings: Mapping[str, str]) -> Iterator[Finding]:
    if one.reached is Reached.TLS and "SSL" in settings.get("security.protocol", "").upper():
        yield Finding(
            name="tls-not-examined",
            subject=one.address,
            why="the port speaks TLS, and the client's settings of TLS cannot be used: nothing "
            "behind it was examined",
            remedy="mend the settings of TLS, or examine a plain listener of the same cluster",
        )
    elif one.reached is not Reached.KAFKA:
        yield _unreached(one, f"the bootstrap address {one.address}")


def _unreached(one: Probe, whose: str) -> Finding:
    """Return the finding about an address behind which no broker answers."""
    host = host_and_port(one.address)[0]
    reasons = {
        Reached.NO_SUCH_HOST: (
            "unresolvable",
            f"{host} resolves to nothing here ({one.detail})",
            "give this machine a name for it (DNS, /etc/hosts), or have the broker advertise an "
            "address that clients resolve",
        ),
        Reached.REFUSED: (
            "refused",
            "no process listens there",
            "start the broker, or correct the port",
        ),
        Reached.UNREACHABLE: (
            "unreachable",
            one.detail or "no route",
            "open the way (firewall, published ports of a container), or advertise an address that "
            "clients reach",
        ),
        Reached.SILENT: (
            "silent",
            one.detail,
            "the process is paused or overloaded, or the port belongs to another program",
        ),
        Reached.TLS: (
            "tls-on-this-port",
            "the port speaks TLS, and the client plain Kafka",
            "set security.protocol=SSL (or SASL_SSL) in the client, or connect to a plain listener",
        ),
        Reached.HTTP: (
            "http-on-this-port",
            "an HTTP server answers: perhaps a control port, a REST proxy or a web console",
            "use the port of a Kafka listener; `quorumlog status` shows it",
        ),
        Reached.OTHER: (
            "other-protocol",
            f"another protocol answers: {one.detail}",
            "use the port of a Kafka listener",
        ),
        Reached.CLOSED: (
            "closed",
            one.detail or "the connection is closed without an answer",
            "a proxy without a broker behind it, a full broker (max.connections), or the port of a "
            "controller: use the port of a running broker",
        ),
        **_behind_versions(one),
    }
    name, why, remedy = reasons[one.reached]
    return Finding(name=name, subject=one.address, why=f"{whose}: {why}", remedy=remedy)


def _behind_versions(one: Probe) -> dict[Reached, tuple[str, str, str]]:
    """Return the findings about a listener that speaks Kafka's protocol, but serves no metadata."""
    return {
        Reached.NO_METADATA: (
            "no-metadata",
            "it speaks Kafka's protocol, and serves no Metadata: the port of a controller",
            "use the port of a broker; controllers serve only administrators that ask for them",
        ),
        Reached.LOGIN: (
            "no-answer",
            f"the broker answers ApiVersions, and then no request ({one.detail})",
            "the listener may require SASL: set security.protocol=SASL_PLAINTEXT in the client",
        ),
        Reached.UNAUTHENTICATED: (
            "unauthenticated",
            one.detail,
            "correct the settings of TLS and SASL in the client, or the user's credential",
        ),
    }


def _of_clusters(views: Sequence[Probe]) -> Iterator[Finding]:
    ids = {one.address: one.metadata.cluster_id for one in views if one.metadata is not None}
    if len({*ids.values()}) > 1:
        shown = ", ".join(f"{address} is of {cluster_id}" for address, cluster_id in ids.items())
        yield Finding(
            name="several-clusters",
            subject=next(iter(ids)),
            why=f"the bootstrap addresses belong to several clusters: {shown}",
            remedy="list addresses of one cluster only",
        )
    for one in views:
        if one.metadata is not None and not one.metadata.brokers:
            yield Finding(
                name="no-brokers",
                subject=one.address,
                why="its metadata has no broker with an address for this listener",
                remedy="add the listener to advertised.listeners, and wait until a broker is ready",
            )


def _of_brokers(
    advertised: Mapping[int, Probe], cluster_ids: Sequence[str | None], bootstrap: Sequence[str]
) -> Iterator[Finding]:
    for broker_id, one in advertised.items():
        whose = f"broker {broker_id} advertises {one.address}"
        if one.reached is not Reached.KAFKA:
            finding = _unreached(one, whose)
            hint = _place(host_and_port(one.address)[0], bootstrap)
            why = f"{finding.why}{hint}"
            yield Finding(
                name=finding.name,
                subject=finding.subject,
                why=why,
                remedy=_ADVERTISE if hint else finding.remedy,
            )
        elif one.metadata is not None and one.metadata.cluster_id not in cluster_ids:
            hint = _place(host_and_port(one.address)[0], bootstrap)
            yield Finding(
                name="another-cluster",
                subject=one.address,
                why=f"{whose}: cluster {one.metadata.cluster_id} answers there{hint}",
                remedy=_ADVERTISE,
            )
        elif one.other_identity:
            yield Finding(
                name="another-broker",
                subject=one.address,
                why=f"{whose}: another broker answers there ({one.other_identity})",
                remedy="give each broker an advertised address of its own: with --advertised "
                "HOST:PORT the ports count up, and each needs its own forwarding",
            )


_ADVERTISE: Final = (
    "advertise an address that clients reach: advertised.listeners of the broker, or `quorumlog up "
    "--listener NAME://0.0.0.0,advertised=HOST`"
)


def _place(host: str, bootstrap: Sequence[str]) -> str:
    """Return the explanation for an address that leads elsewhere from another machine."""
    try:
        address = ip_address(host)
    except ValueError:
        is_loopback, is_inside = host == "localhost", False
        if "." not in host and not is_loopback:
            return "; a name without a dot is often the name of a container, valid in its network"
    else:
        is_loopback, is_inside = address.is_loopback, str(address).startswith("172.")
    if is_loopback and not all(
        one == "localhost" or one.startswith(("127.", "::1")) for one in bootstrap
    ):
        return "; a loopback address leads each client to its own machine or container"
    return "; an address of 172.* is often a container's, valid in its network" if is_inside else ""


def _of_versions(probes: Sequence[Probe]) -> Iterator[Finding]:
    for one in probes:
        if not one.api_versions:
            continue
        for key, (name, version, clients) in _NEEDS.items():
            served = one.api_versions.get(key)
            if served is None or version not in served:
                have = "not" if served is None else f"in versions {served.start}-{served.stop - 1}"
                yield Finding(
                    name="api-versions",
                    subject=one.address,
                    why=f"{name} is served {have}, and common clients speak version {version}: "
                    f"some {clients} do not work",
                    remedy="check the versions of the client's release, or upgrade the broker",
                )


def _of_replicas(facts: ClusterFacts) -> Iterator[Finding]:
    for name in _REPLICA_SETTINGS:
        wanted = facts.limit(name)
        if wanted is not None and wanted > facts.brokers > 0:
            yield Finding(
                name="too-few-brokers",
                subject=name,
                why=f"{name}={wanted}, and the cluster has {facts.brokers} brokers that serve: "
                + (
                    "acks=all is refused (NOT_ENOUGH_REPLICAS)"
                    if name == "min.insync.replicas"
                    else "new topics are refused (INVALID_REPLICATION_FACTOR)"
                ),
                remedy=f"start more brokers, or set {name} to {facts.brokers} at most",
            )


def _of_quorum(probes: Sequence[Probe]) -> Iterator[Finding]:
    problems = [one.quorum_problem for one in probes if one.quorum_problem]
    if problems and len(problems) == sum(bool(one.api_versions) for one in probes):
        yield Finding(
            name="no-controller",
            subject="controller",
            why=f"no leader of the metadata quorum answers ({problems[0]}): changes of topics, new "
            "producer ids and elections of leaders wait",
            remedy="start a majority of the controllers",
        )


def _of_clock(skew_ms: int | None) -> Iterator[Finding]:
    if skew_ms is not None and abs(skew_ms) > SKEW_MAX_MS:
        side = "ahead of" if skew_ms > 0 else "behind"
        yield Finding(
            name="clock",
            subject="controller",
            why=f"its clock is {abs(skew_ms) / 1000:.1f} s {side} the clock here: timestamps, "
            "retention by time and offsets by time are off by as much",
            remedy="synchronize the clocks (NTP)",
        )
