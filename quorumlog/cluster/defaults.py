"""The settings that `--defaults` gives the nodes of a new cluster."""

from collections.abc import Mapping
from typing import Final

from quorumlog.cluster.errors import InvalidArgument

FAST_DEFAULTS: Final[Mapping[str, str]] = {
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "controller.quorum.election.timeout.ms": "200",
    "controller.quorum.fetch.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "initial.broker.registration.timeout.ms": "600000",
    "log.segment.delete.delay.ms": "1000",
    "offsets.topic.num.partitions": "8",
    "replica.lag.time.max.ms": "5000",
    "replica.socket.timeout.ms": "3000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1",
    "transaction.state.log.num.partitions": "8",
}
"""Changes of Kafka's defaults by `--defaults fast`, for a quick failover on one machine.

A broker waits longer for its first registration than in Kafka: it is not restarted automatically,
and after a loss of all nodes a machine may be busy for minutes. `LocalCluster` has its own limits.
"""

_REPLICAS: Final = 3
SAFE_SETTINGS: Final[Mapping[str, str]] = {
    "default.replication.factor": str(_REPLICAS),
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": str(_REPLICAS),
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.replication.factor": str(_REPLICAS),
    "unclean.leader.election.enable": "false",
}
"""The settings with which a record of `acks=all` survives the loss of any broker.

`--defaults safe` adds them to `FAST_DEFAULTS`. They are written out, so that the files of the nodes
and `configs describe` show them. The settings of the clients are in docs/safe-settings.md.
"""
DEFAULTS: Final[Mapping[str, Mapping[str, str]]] = {
    "fast": FAST_DEFAULTS,
    "kafka": {},
    "safe": {**FAST_DEFAULTS, **SAFE_SETTINGS},
}
"""By the name of `--defaults`."""


def settings_for(brokers: int) -> dict[str, str]:
    """Return the settings of a new cluster that depend on its number of brokers."""
    replicas = str(min(_REPLICAS, brokers))
    return {
        "controller.quorum.auto.join.enable": "true",  # also with an empty disk
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": str(min(2, brokers)),
    }


def defaults_called(name: str, brokers: int) -> Mapping[str, str]:
    """Return the settings that `--defaults` names, for a number of brokers.

    Raises InvalidArgument, also for safe settings that need more brokers.
    """
    if name not in DEFAULTS:
        raise InvalidArgument(f"--defaults {name}: it is fast, kafka or safe")
    if name == "safe" and brokers < _REPLICAS:
        raise InvalidArgument(
            f"--defaults safe: {_REPLICAS} replicas need {_REPLICAS} brokers, and there are "
            f"{brokers}: start more, or leave --defaults out"
        )
    return DEFAULTS[name]


def require_kept_defaults(name: str, config: Mapping[str, str]) -> None:
    """Refuse safe settings for a cluster that was created without. Raises InvalidArgument.

    config: the settings of the cluster. A value that was given beside `--defaults safe` is kept.
    """
    if name == "safe" and not SAFE_SETTINGS.keys() <= config.keys():
        raise InvalidArgument(
            "--defaults safe: the cluster in this directory was created without, and keeps its "
            "settings; leave --defaults out, or choose another --dir"
        )
