"""Alters the settings of one broker, or of all brokers, while they run (KIP-226).

It refuses settings that nodes read only at their start, unsupported security settings, bad values,
and for one broker the settings of the controller's decisions: unclean.leader.election.enable and
min.insync.replicas. It stores unknown names, as Kafka does for plug-ins that read them, but only a
limited number, so that the metadata stays small.
"""

from typing import Final

from quorumlog.metadata_quorum.cluster_changes import ConfigChanges, ConfigResult
from quorumlog.metadata_quorum.controller.configs import altered, check_form, records_between
from quorumlog.metadata_quorum.controller.features import level_for
from quorumlog.metadata_quorum.controller.min_insync_replicas import SERVER_NAME, around_cluster
from quorumlog.metadata_quorum.controller.refusals import TopicRefused, check_records
from quorumlog.metadata_quorum.image.features import LEVEL_OF_CLUSTER_MIN_ISR
from quorumlog.metadata_quorum.image.records import BROKER_RESOURCE, MetadataRecord
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.settings.kinds import BadValue
from quorumlog.settings.servers import DYNAMIC, read_only_names, table_of, why_not_altered
from quorumlog.settings.topics import TopicConfig
from quorumlog.wire.codec.error_codes import ErrorCode

UNKNOWN_NAMES_MAX: Final = 200
UNKNOWN_NAME_LENGTH_MAX: Final = 255
UNKNOWN_VALUE_LENGTH_MAX: Final = 4096
_READ_ONLY: Final = read_only_names(table_of())
"""Names that every node reads only at its start.

The broker that receives a request also refuses such names of its own parts.
"""
_UNCLEAN = TopicConfig.unclean_leader_election_enable


def alter_brokers(
    cluster: ClusterReplay, before_all: int, wanted: ConfigChanges, written: int
) -> tuple[list[MetadataRecord], ConfigResult]:
    """Alter one broker, or all (""), after `before_all` and `written` records of others."""
    check_form(wanted)
    _check_names(wanted)
    before = cluster.broker_configs(wanted.name)
    after = altered(wanted, before, DYNAMIC, _kept)
    if sum(name not in DYNAMIC for name in after) > UNKNOWN_NAMES_MAX:
        message = f"A broker may have at most {UNKNOWN_NAMES_MAX} configurations of unknown names"
        raise TopicRefused(ErrorCode.POLICY_VIOLATION, message)
    records = records_between(BROKER_RESOURCE, wanted.name, before, after)
    if before.get(SERVER_NAME) != after.get(SERVER_NAME):
        records = _with_new_min_isr(cluster, records, after.get(SERVER_NAME))
    check_records(before_all + written + len(records))
    return records, ConfigResult(
        name=wanted.name, error_code=ErrorCode.NONE, configs=after, is_broker=True
    )


def _with_new_min_isr(
    cluster: ClusterReplay, records: list[MetadataRecord], number: str | None
) -> list[MetadataRecord]:
    """Return `records`, with the level that they require and the partition changes around them."""
    if number is None:
        message = f"Cluster-level {SERVER_NAME} cannot be removed while ELR is enabled."
        raise TopicRefused(ErrorCode.INVALID_CONFIG, message)
    level, problem = level_for(cluster, LEVEL_OF_CLUSTER_MIN_ISR)
    if problem is not None:
        raise TopicRefused(problem.error_code, problem.error_message or "")
    around = around_cluster(cluster, int(number))
    first = [] if level is None else [level]
    return [*around.before, *first, *records, *around.after]


def _check_names(wanted: ConfigChanges) -> None:
    problem = why_not_altered(wanted.given_names, _READ_ONLY)
    if problem is not None:
        raise TopicRefused(ErrorCode.INVALID_REQUEST, problem)
    if wanted.name and any(change.name == SERVER_NAME for change in wanted.changes):
        message = f"Broker-level {SERVER_NAME} cannot be altered while ELR is enabled."
        raise TopicRefused(ErrorCode.INVALID_CONFIG, message)
    if wanted.name and any(change.name == _UNCLEAN.server for change in wanted.changes):
        message = f"{_UNCLEAN.server} is for all brokers: alter it for the resource without a name"
        raise TopicRefused(ErrorCode.INVALID_REQUEST, message)


def _kept(name: str, value: str) -> str:
    """Return the stored form of a value. The error code for a bad value is Kafka's: KAFKA-13609."""
    setting = DYNAMIC.get(name)
    if setting is None:
        return _kept_unknown(name, value)
    try:
        return setting.kind.normalize(value)
    except BadValue as error:
        message = f"Invalid value {value} for configuration {name}: {error}"
        raise TopicRefused(ErrorCode.INVALID_REQUEST, message) from None


def _kept_unknown(name: str, value: str) -> str:
    if not 0 < len(name) <= UNKNOWN_NAME_LENGTH_MAX or len(value) > UNKNOWN_VALUE_LENGTH_MAX:
        message = (
            "A configuration of an unknown name must have a name of 1 to "
            f"{UNKNOWN_NAME_LENGTH_MAX} characters and a value of at most "
            f"{UNKNOWN_VALUE_LENGTH_MAX}"
        )
        raise TopicRefused(ErrorCode.INVALID_REQUEST, message)
    return value
