"""Alters the configurations of topics: set, delete, append, subtract, or replace the whole.

It refuses unknown names, bad and missing values, a name or a topic that a request has twice, and
items for a setting that is no list. A change of min.insync.replicas voids the ISR proposals that
were made under the old number. Sources: KIP-339 (incremental), KIP-133 (whole), KIP-966 (ELRs).
"""

from functools import partial

from quorumlog.metadata_quorum.controller.configs import config_error, kept_value
from quorumlog.metadata_quorum.controller.refusals import (
    TopicRefused,
    check_named,
    check_records,
    decide_each,
)
from quorumlog.metadata_quorum.controller.requests import (
    AlterTopicConfigs,
    ConfigResults,
    Decision,
)
from quorumlog.metadata_quorum.controller_client import (
    ConfigChange,
    ConfigOperation,
    ConfigResult,
    TopicConfigChanges,
)
from quorumlog.metadata_quorum.image.records import (
    TOPIC_RESOURCE,
    Config,
    MetadataRecord,
    PartitionChange,
)
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.settings.kinds import ConfigType
from quorumlog.settings.topics import TOPIC_SETTINGS, TopicConfig
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, PartitionIndex, TopicId


def decide_topic_configs(
    cluster: ClusterReplay, request: AlterTopicConfigs
) -> Decision[ConfigResults]:
    """Alter the valid topics; a result per topic, in the order of the request."""
    try:
        named = len(request.topics) + sum(len(topic.changes) for topic in request.topics)
        check_named(named, "topics and configurations")
    except TopicRefused as refusal:
        whole = tuple(refusal.config_result_of(topic.name) for topic in request.topics)
        return Decision(response=ConfigResults(results=whole))
    records, results = decide_each(
        request.topics,
        partial(_alter, cluster),
        TopicRefused.config_result_of,
        twice="Each resource must appear at most once.",
    )
    return Decision(
        response=ConfigResults(results=results),
        records=() if request.validate_only else records,
    )


def _alter(
    cluster: ClusterReplay, topic: TopicConfigChanges, written: int
) -> tuple[list[MetadataRecord], ConfigResult]:
    """Alter one topic, after `written` records for others."""
    _check_form(topic)
    topic_id = cluster.topic_id(topic.name)
    if topic_id is None:
        raise TopicRefused(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic.name}' does not exist."
        )
    before = cluster.configs(topic.name)
    after = {} if topic.replaces_all else dict(before)
    for change in topic.changes:
        value = _value_after(change, before.get(change.name))
        problem = None if value is None else config_error(change.name, value)
        if problem is not None:
            raise TopicRefused(ErrorCode.INVALID_CONFIG, problem)
        if value is None:
            after.pop(change.name, None)
        else:
            after[change.name] = kept_value(change.name, value)
    changed = {n: after.get(n) for n in sorted({*before, *after}) if before.get(n) != after.get(n)}
    records: list[MetadataRecord] = [
        Config(resource_type=TOPIC_RESOURCE, resource_name=topic.name, name=name, value=value)
        for name, value in changed.items()
    ]
    if TopicConfig.min_insync_replicas.name in changed:
        before_it, behind_it = _around_a_new_min_isr(cluster, topic.name, topic_id)
        records = [*before_it, *records, *behind_it]
    check_records(written + len(records))
    return records, ConfigResult(name=topic.name, error_code=ErrorCode.NONE, configs=after)


def _check_form(topic: TopicConfigChanges) -> None:
    names = [change.name for change in topic.changes]
    if len({*names}) < len(names):
        raise TopicRefused(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [
        change.name
        for change in topic.changes
        if change.value is None and change.operation is not ConfigOperation.DELETE
    ]
    if nulls:
        message = f"Null value not supported for : {','.join(nulls)}"
        raise TopicRefused(ErrorCode.INVALID_REQUEST, message)


def _value_after(change: ConfigChange, before: str | None) -> str | None:
    """Return the new value of a setting; None: the broker's value."""
    match change.operation:
        case ConfigOperation.SET:
            return change.value
        case ConfigOperation.DELETE:
            return None
        case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
            return _list_after(change, before)


def _list_after(change: ConfigChange, before: str | None) -> str:
    setting = TOPIC_SETTINGS.get(change.name)
    if setting is None or setting.kind.type is not ConfigType.LIST:
        raise TopicRefused(
            ErrorCode.INVALID_CONFIG,
            f"Can't {change.operation.name} to key {change.name} because its type is not LIST.",
        )
    # A dict: it keeps the order, and finds what is there already at once.
    items = dict.fromkeys(_split(setting.default if before is None else before))
    for item in _split(change.value or ""):
        if change.operation is ConfigOperation.APPEND:
            items[item] = None
        else:
            items.pop(item, None)
    return ",".join(items)


def _split(text: str) -> list[str]:
    return [item for item in (part.strip() for part in text.split(",")) if item]


def _around_a_new_min_isr(
    cluster: ClusterReplay, name: str, topic_id: TopicId
) -> tuple[list[PartitionChange], list[PartitionChange]]:
    """Return the changes to write before and after a change of min.insync.replicas, in one batch.

    A replica that leaves a too small ISR goes to the ELR, because the leader commits nothing then.
    Before the change, the ELRs are cleared: with a smaller number the leader commits. After it, the
    partition epochs rise: a proposal that is granted from here on carries an epoch that its leader
    has from a replay of this change, so that leader and controller use the same number.
    A partition without a leader is left alone: nothing was committed since.

    # DEVIATION: Kafka clears the ELRs and leaves the epochs as they are.
    # docs/decisions/0033-a-new-min-insync-replicas-voids-older-proposals.md
    """
    led = [
        (PartitionIndex(index), partition)
        for index, partition in enumerate(cluster.partitions(name))
        if partition.leader_id != NO_LEADER
    ]
    before = [
        PartitionChange(topic_id=topic_id, partition_id=index, elr=())
        for index, partition in led
        if partition.elr
    ]
    behind = [PartitionChange(topic_id=topic_id, partition_id=index) for index, _ in led]
    return before, behind
