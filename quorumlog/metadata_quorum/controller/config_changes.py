"""Alters the configurations of topics and brokers: set, delete, append, subtract, or replace all.

It refuses unknown names, bad and missing values, repeated names and topics, and APPEND or SUBTRACT
for a setting that is no list. A change of min.insync.replicas voids the ISR proposals that were
made under the old number. After a change that allows unclean elections, `Slices` holds them.
Sources: KIP-339 (incremental), KIP-133 (whole), KIP-966 (ELRs).
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from quorumlog.metadata_quorum.cluster_changes import ConfigChanges, ConfigResult
from quorumlog.metadata_quorum.controller import min_insync_replicas
from quorumlog.metadata_quorum.controller.broker_configs import alter_brokers
from quorumlog.metadata_quorum.controller.configs import (
    altered,
    check_form,
    config_error,
    kept_value,
    records_between,
)
from quorumlog.metadata_quorum.controller.decision import Decision
from quorumlog.metadata_quorum.controller.refusals import (
    TopicRefused,
    check_named,
    check_records,
    decide_each,
)
from quorumlog.metadata_quorum.controller_requests import AlterConfigs, ConfigResults
from quorumlog.metadata_quorum.image.records import TOPIC_RESOURCE, MetadataRecord
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.settings.topics import TOPIC_SETTINGS
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset


def decide_configs(
    cluster: ClusterReplay, request: AlterConfigs, base_offset: Offset
) -> Decision[ConfigResults]:
    """Alter the valid topics and brokers; a result for each, in the order of the request.

    `base_offset`: the offset of the first record, if there are records. Raises TopicRefused: the
    request names too many of them.
    """
    named = len(request.topics) + sum(len(topic.changes) for topic in request.topics)
    check_named(named, "topics and configurations")
    records: tuple[MetadataRecord, ...] = ()
    results: dict[bool, Iterator[ConfigResult]] = {}
    for is_broker, alter in ((False, _alter), (True, alter_brokers)):  # two kinds of names
        new_records, decided = decide_each(
            [one for one in request.topics if one.is_broker is is_broker],
            partial(alter, cluster, len(records)),
            TopicRefused.config_result_of,
            twice="Each resource must appear at most once.",
        )
        records += new_records
        results[is_broker] = iter(decided)
    in_order = tuple(next(results[one.is_broker]) for one in request.topics)
    if request.validate_only or not records:
        return Decision(response=ConfigResults(results=in_order))
    end_offset = Offset(base_offset + len(records))
    shown = tuple(replace(result, end_offset=end_offset) for result in in_order)
    return Decision(response=ConfigResults(results=shown), records=records)


def _alter(
    cluster: ClusterReplay, before_all: int, topic: ConfigChanges, written: int
) -> tuple[list[MetadataRecord], ConfigResult]:
    """Alter one topic, after `before_all` and `written` records of other resources."""
    check_form(topic)
    topic_id = cluster.topic_id(topic.name)
    if topic_id is None:
        raise TopicRefused(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic.name}' does not exist."
        )
    before = cluster.configs(topic.name)
    after = altered(topic, before, TOPIC_SETTINGS, _kept)
    records = records_between(TOPIC_RESOURCE, topic.name, before, after)
    setting = min_insync_replicas.TOPIC_NAME
    if before.get(setting) != after.get(setting):
        around = min_insync_replicas.around_topic(cluster, topic.name, topic_id)
        records = [*around.before, *records, *around.after]
    check_records(before_all + written + len(records))
    return records, ConfigResult(name=topic.name, error_code=ErrorCode.NONE, configs=after)


def _kept(name: str, value: str) -> str:
    problem = config_error(name, value)
    if problem is not None:
        raise TopicRefused(ErrorCode.INVALID_CONFIG, problem)
    return kept_value(name, value)
