"""Alters the settings of one broker or of all, while they run (KIP-226).

It refuses settings that a node reads when it starts, bad values, and for one broker the settings by
which the controller decides: unclean.leader.election.enable and min.insync.replicas.
"""

from quorumlog.metadata_quorum.config_changes import ConfigChange, ConfigChanges, ConfigResult
from quorumlog.metadata_quorum.controller.configs import check_form, value_after
from quorumlog.metadata_quorum.controller.features import level_for
from quorumlog.metadata_quorum.controller.min_insync_replicas import SERVER_NAME, around_cluster
from quorumlog.metadata_quorum.controller.refusals import TopicRefused, check_records
from quorumlog.metadata_quorum.image.features import LEVEL_OF_CLUSTER_MIN_ISR
from quorumlog.metadata_quorum.image.records import BROKER_RESOURCE, Config, MetadataRecord
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.settings.kinds import BadValue
from quorumlog.settings.servers import DYNAMIC
from quorumlog.settings.topics import TopicConfig
from quorumlog.wire.codec.error_codes import ErrorCode

_UNCLEAN = TopicConfig.unclean_leader_election_enable


def alter_brokers(
    cluster: ClusterReplay, before_all: int, wanted: ConfigChanges, written: int
) -> tuple[list[MetadataRecord], ConfigResult]:
    """Alter one broker, or all (""), after `before_all` and `written` records for others."""
    check_form(wanted)
    _check_dynamic(wanted)
    before = cluster.broker_configs(wanted.name)
    after = {} if wanted.replaces_all else dict(before)
    for change in wanted.changes:
        value = value_after(change, before.get(change.name), DYNAMIC)
        if value is None:
            after.pop(change.name, None)
        else:
            after[change.name] = _kept(change, value)
    changed = {n: after.get(n) for n in sorted({*before, *after}) if before.get(n) != after.get(n)}
    records: list[MetadataRecord] = [
        Config(resource_type=BROKER_RESOURCE, resource_name=wanted.name, name=name, value=value)
        for name, value in changed.items()
    ]
    if SERVER_NAME in changed:
        records = _with_new_min_isr(cluster, records, changed[SERVER_NAME])
    check_records(before_all + written + len(records))
    return records, ConfigResult(
        name=wanted.name, error_code=ErrorCode.NONE, configs=after, is_broker=True
    )


def _with_new_min_isr(
    cluster: ClusterReplay, records: list[MetadataRecord], number: str | None
) -> list[MetadataRecord]:
    """Return `records`, with the level that they need and the partitions that they change."""
    if number is None:
        message = f"Cluster-level {SERVER_NAME} cannot be removed while ELR is enabled."
        raise TopicRefused(ErrorCode.INVALID_CONFIG, message)
    level, problem = level_for(cluster, LEVEL_OF_CLUSTER_MIN_ISR)
    if problem is not None:
        raise TopicRefused(problem.error_code, problem.error_message or "")
    around = around_cluster(cluster, int(number))
    first = [] if level is None else [level]
    return [*around.before, *first, *records, *around.after]


def _check_dynamic(wanted: ConfigChanges) -> None:
    fixed = sorted(change.name for change in wanted.changes if change.name not in DYNAMIC)
    if fixed:
        message = f"Cannot update these configs dynamically: Set({', '.join(fixed)})"
        raise TopicRefused(ErrorCode.INVALID_REQUEST, message)
    if wanted.name and any(change.name == SERVER_NAME for change in wanted.changes):
        message = f"Broker-level {SERVER_NAME} cannot be altered while ELR is enabled."
        raise TopicRefused(ErrorCode.INVALID_CONFIG, message)
    if wanted.name and any(change.name == _UNCLEAN.server for change in wanted.changes):
        message = f"{_UNCLEAN.server} is for all brokers: alter it for the resource without a name"
        raise TopicRefused(ErrorCode.INVALID_REQUEST, message)


def _kept(change: ConfigChange, value: str) -> str:
    try:
        return DYNAMIC[change.name].kind.normalize(value)
    except BadValue as error:
        message = f"Invalid value {value} for configuration {change.name}: {error}"
        raise TopicRefused(ErrorCode.INVALID_CONFIG, message) from None
