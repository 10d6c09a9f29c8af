"""`meta.json`: the facts that explain a run to a reader who did not see it."""

import platform
import shlex
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from quorumlog import __version__
from quorumlog.chaos.schedule import Schedule
from quorumlog.chaos.workloads.registry import find_workload
from quorumlog.client import Admin, KafkaError

if TYPE_CHECKING:
    from quorumlog.chaos.run import RunSettings, RunSummary

_PLANNED: Final = (  # the settings that a reader needs, as they were given
    "workload", "duration_s", "seed", "driver", "network", "bootstrap", "control", "topic",
    "partitions", "replication_factor", "config", "node_module",
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


def meta_at_start(settings: "RunSettings", schedule: Schedule) -> dict[str, Any]:
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
        **{name: getattr(settings, name) for name in _PLANNED},
        "driver_version": _version(settings.driver),
        "faults": sorted({action.fault.name for action in schedule.actions}),
        "schedule": {
            "given": settings.schedule is not None,
            "seed": schedule.seed,
            "actions": len(schedule.actions),
        },
    }


def _version(driver: str) -> str:
    """Return the name and version of a driver's library."""
    library = _LIBRARIES.get(driver)
    return f"quorumlog {__version__}" if library is None else f"{library} {version(library)}"


def meta_at_end(started: Mapping[str, Any], summary: "RunSummary") -> dict[str, Any]:
    """Return all facts: those before the run, and its results."""
    return {
        **started,
        "topic_settings": dict(summary.topic_settings),
        "seconds": round(summary.seconds, 1),
        "load": summary.load.as_json(),
        "faults_carried_out": summary.faults,
        "faults_not_met": list(summary.not_met),
    }


async def topic_settings(bootstrap: str, topic: str) -> dict[str, str]:
    """Return the topic's settings in force; after an error, its text as a value."""
    try:
        async with Admin(bootstrap) as admin:
            configs = await admin.describe_configs("topic", topic)
    except (KafkaError, ConnectionError) as error:
        return dict.fromkeys(_DECISIVE[:1], f"unknown: {error}")
    return {name: configs[name].value or "" for name in _DECISIVE if name in configs}
