"""The settings of a run, its summary, and `meta.json`: the facts that explain it to a reader."""

import platform
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import Any, Final

from quorumlog import __version__
from quorumlog.chaos.back_ends.local_processes import RUN_FAULTS
from quorumlog.chaos.drivers.security import PLAINTEXT
from quorumlog.chaos.faults.registry import fault_and_role
from quorumlog.chaos.network.links import NetworkKind
from quorumlog.chaos.run.extension import required_by_default
from quorumlog.chaos.run.figures import OfferedLoad
from quorumlog.chaos.run.protection import protection_of
from quorumlog.chaos.run.stopped_replicas import ComparedReplicas
from quorumlog.chaos.schedule import Option, Schedule
from quorumlog.chaos.workloads.registry import find_workload
from quorumlog.chaos.workloads.workload import options_of
from quorumlog.client import Admin, KafkaError
from quorumlog.client.security import SecuritySettings
from quorumlog.cluster import ClusterShape
from quorumlog.cluster.security import SecurityOptions, shown_config

Progress = Callable[[str, float, str], None]
"""Called with (phase, fraction of it done 0..1, figures so far)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The workload, the cluster and the faults of a run, and the directory of its results.

    Raises ValueError for invalid settings, before anything is started or removed.
    """

    out: Path
    workload: str = "append_read"
    options: Mapping[str, Option] = field(default_factory=dict)  # of the workload
    faults: tuple[str, ...] = ("kill",)
    duration_s: float = 60.0
    overlap: bool = True  # of the drawn faults: one may begin while others last
    acks_in_faults: int | None = None  # at least, or the faults go on; None: by rate and duration
    seed: int = 0
    shape: ClusterShape = field(default_factory=ClusterShape)  # of the cluster that the run starts
    network: NetworkKind = "proxy"  # how links are broken
    record_responses: bool = False  # by forwarders, also if no fault needs them
    driver: str = "client"
    producer: Mapping[str, str] = field(default_factory=dict)  # settings of the driver's producers
    bootstrap: str | None = None  # a cluster that the run does not start
    security: SecuritySettings = PLAINTEXT  # of the clients at `bootstrap`
    protection: SecurityOptions = field(  # of the cluster that the run starts
        default_factory=SecurityOptions, repr=False
    )
    control: str | None = None  # how to break it: NAME:ARGUMENT of back_ends.registry
    schedule: Schedule | None = None  # instead of drawing one from the seed
    config: Mapping[str, str] = field(default_factory=dict)
    node_module: str = "quorumlog.node"
    topic: str = "chaos"
    partitions: int = 4  # more than nodes, so that a leader, a session and a member have two
    replication_factor: int = 3
    command: tuple[str, ...] = ()  # as it was typed; kept beside the history

    def __post_init__(self) -> None:
        find_workload(self.workload).read_options(self.options)
        if not 0 < self.duration_s < inf:
            raise ValueError(f"--duration {self.duration_s:g} s: it must be above 0")
        if self.acks_in_faults is not None and self.acks_in_faults < 0:
            raise ValueError(f"--acks-in-faults {self.acks_in_faults}: it must be 0 or more")
        for name in self.faults:
            fault_and_role(name, RUN_FAULTS)
        if self.record_responses and (self.bootstrap is not None or self.network != "proxy"):
            raise ValueError(
                "--record-responses needs forwarders: leave out --bootstrap and --network netns"
            )

    @property
    def all_options(self) -> dict[str, Option]:
        """The given options of the workload, and defaults for the others."""
        return options_of(find_workload(self.workload).read_options(self.options))

    @property
    def required_in_faults(self) -> int:
        """The number of acknowledgements that must lie among drawn faults."""
        if self.acks_in_faults is not None:
            return self.acks_in_faults
        return required_by_default(self.rate, self.duration_s)

    @property
    def rate(self) -> float:
        """The operations that the workload offers in a second."""
        rate: float = find_workload(self.workload).read_options(self.options).rate
        return rate

    @property
    def model(self) -> str:
        """The name of the checker for the history."""
        return find_workload(self.workload).model


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The facts about a run, before any check of it."""

    figures: str  # operations of the clients, by outcome
    sends_ok: int
    faults: int  # carried out
    not_met: tuple[str, ...]  # requested faults that were not carried out
    reads_complete: bool
    seconds: float
    load: OfferedLoad
    in_faults: tuple[int, int] | None  # acknowledgements among drawn faults, and as required
    topic_settings: Mapping[str, str]  # in force, as the cluster reports them
    replicas: ComparedReplicas | None = None  # None: of a cluster that outlives the run

    def in_faults_as_json(self) -> dict[str, int]:
        """Return `in_faults` for meta.json and --json; {} if no faults were drawn."""
        if self.in_faults is None:
            return {}
        acknowledged, required = self.in_faults
        return {"acknowledged_in_faults": acknowledged, "required_in_faults": required}


_PLANNED: Final = (  # the settings that a reader needs, as they were given
    "workload", "duration_s", "seed", "driver", "network", "bootstrap", "control", "topic",
    "partitions", "replication_factor", "node_module",
)  # fmt: skip
_LIBRARIES: Final = {name: name for name in ("aiokafka", "kafka-python")} | {
    "confluent": "confluent-kafka"
}
# The settings that decide how much a cluster may lose and still keep its promises.
_DECISIVE: Final = (
    "min.insync.replicas",
    "unclean.leader.election.enable",
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
)


def meta_at_start(settings: RunSettings, schedule: Schedule) -> dict[str, Any]:
    """Return the facts before the run: written at once, so that a run cut short has them.

    `schedule` is the one that is carried out, given or drawn: `faults` has the names of its faults.
    `seed` is the seed of the clients; a schedule has its own. The writer of the history adds
    `started_wall_ns`.
    """
    return {
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "quorumlog": __version__,
        "python": platform.python_version(),
        "platform": f"{sys.platform} {platform.machine()}",
        "command": shlex.join(settings.command) or None,
        "workload_options": settings.all_options,
        "model": settings.model,
        "dense": find_workload(settings.workload).dense,
        "nodes": len(settings.shape.roles) if settings.bootstrap is None else None,
        "controllers": settings.shape.controllers,
        "racks": [*settings.shape.racks],
        "security": _security(settings),
        "producer": dict(settings.producer),
        **{name: getattr(settings, name) for name in _PLANNED},
        "config": shown_config(settings.config),
        "driver_version": _version(settings.driver),
        "faults": sorted({action.fault.name for action in schedule.actions}),
        "schedule": {
            "given": settings.schedule is not None,
            "seed": schedule.seed,
            "actions": len(schedule.actions),
        },
    }


def _security(settings: RunSettings) -> dict[str, Any]:
    """Return the protection of the run's clients, and of its own cluster, without a secret."""
    options = protection_of(settings.workload, settings.protection)
    return {
        "protocol": settings.security.security_protocol,
        "mechanism": settings.security.sasl_mechanism,
        "user": settings.security.sasl_username,
        "acls": bool(options.get("acls")) if settings.bootstrap is None else None,
    }


def _version(driver: str) -> str:
    """Return the name and version of a driver's library."""
    library = _LIBRARIES.get(driver)
    return f"quorumlog {__version__}" if library is None else f"{library} {version(library)}"


def meta_at_end(started: Mapping[str, Any], summary: RunSummary) -> dict[str, Any]:
    """Return all facts: those before the run, and its results."""
    return {
        **started,
        "topic_settings": dict(summary.topic_settings),
        "seconds": round(summary.seconds, 1),
        "load": summary.load.as_json(),
        **summary.in_faults_as_json(),
        "replicas": None if summary.replicas is None else summary.replicas._asdict(),
        "faults_carried_out": summary.faults,
        "faults_not_met": list(summary.not_met),
    }


async def topic_settings(client: Mapping[str, Any], topic: str) -> dict[str, str]:
    """Return the topic's settings in force; after an error, its text as a value."""
    try:
        async with Admin(**client) as admin:
            configs = await admin.describe_configs("topic", topic)
    except (KafkaError, ConnectionError) as error:
        return dict.fromkeys(_DECISIVE[:1], f"unknown: {error}")
    return {name: configs[name].value or "" for name in _DECISIVE if name in configs}
