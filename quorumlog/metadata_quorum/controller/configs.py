"""Validates the configuration of topics, and brings values into their stored normal form.

An unknown name is refused, with the nearest valid name in the message.
"""

from collections.abc import Callable, Mapping
from typing import Any

from quorumlog.metadata_quorum.cluster_changes import ConfigChange, ConfigChanges, ConfigOperation
from quorumlog.metadata_quorum.controller.refusals import TopicRefused
from quorumlog.metadata_quorum.image.records import TOPIC_RESOURCE, Config, MetadataRecord
from quorumlog.settings.kafka_names import nearest_name
from quorumlog.settings.kinds import BadValue, ConfigType
from quorumlog.settings.servers import ServerSetting
from quorumlog.settings.topics import TOPIC_SETTINGS, TopicSetting
from quorumlog.wire.codec.error_codes import ErrorCode

Settings = Mapping[str, TopicSetting[Any]] | Mapping[str, ServerSetting[Any]]


def config_error(name: str, value: str) -> str | None:
    """Return the problem of one entry, or None."""
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        near = nearest_name(name, TOPIC_SETTINGS)
        hint = f", did you mean {near}?" if near else ""
        return f"Unknown topic config name: {name}{hint}"
    try:
        setting.kind.normalize(value)
    except BadValue as error:
        return f"Invalid value {value} for configuration {name}: {error}"
    return None


def configs_error(configs: Mapping[str, str]) -> str | None:
    """Return the problem of the first bad entry, or None."""
    problems = (config_error(name, value) for name, value in configs.items())
    return next((problem for problem in problems if problem is not None), None)


def kept_value(name: str, value: str) -> str:
    """Return the normal form of a valid value, in which it is stored and described."""
    return TOPIC_SETTINGS[name].kind.normalize(value)


def config_records(topic: str, configs: Mapping[str, str]) -> list[MetadataRecord]:
    """Return the records that configure a new topic."""
    kept = {name: kept_value(name, value) for name, value in configs.items()}
    return records_between(TOPIC_RESOURCE, topic, {}, kept)


def records_between(
    resource_type: int, resource: str, before: Mapping[str, str], after: Mapping[str, str]
) -> list[MetadataRecord]:
    """Return the records that turn one configuration of a resource into another, by name."""
    names = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    return [
        Config(
            resource_type=resource_type, resource_name=resource, name=name, value=after.get(name)
        )
        for name in names
    ]


def altered(
    wanted: ConfigChanges,
    before: Mapping[str, str],
    settings: Settings,
    kept: Callable[[str, str], str],
) -> dict[str, str]:
    """Return a configuration after the changes, which have passed `check_form`.

    `kept` returns the stored form of a name's value, or raises TopicRefused. Raises TopicRefused.
    """
    after = {} if wanted.replaces_all else dict(before)
    for change in wanted.changes:
        value = _value_after(change, before.get(change.name), settings)
        if value is None:
            after.pop(change.name, None)
        else:
            after[change.name] = kept(change.name, value)
    return after


def check_form(topic: ConfigChanges) -> None:
    """Raise TopicRefused if the changes of one resource repeat a name or lack a value."""
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


def _value_after(change: ConfigChange, before: str | None, settings: Settings) -> str | None:
    """Return the new value of a setting; None: the value of the level below holds again."""
    match change.operation:
        case ConfigOperation.SET:
            return change.value
        case ConfigOperation.DELETE:
            return None
        case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
            return _list_after(change, before, settings)


def _list_after(change: ConfigChange, before: str | None, settings: Settings) -> str | None:
    setting = settings.get(change.name)
    if setting is None or setting.kind.type is not ConfigType.LIST:
        raise TopicRefused(
            ErrorCode.INVALID_CONFIG,
            f"Can't {change.operation.name} to key {change.name} because its type is not LIST.",
        )
    # A dict keeps the order, and finds a present item at once.
    items = dict.fromkeys(_split(before if before is not None else setting.default or ""))
    for item in _split(change.value or ""):
        if change.operation is ConfigOperation.APPEND:
            items[item] = None
        else:
            items.pop(item, None)
    # DEVIATION: Kafka keeps a setting that SUBTRACT has emptied, also if its default is empty.
    # docs/decisions/0016-reassignments.md
    is_unset = change.operation is ConfigOperation.SUBTRACT and not (items or setting.default)
    return None if is_unset else ",".join(items)


def _split(text: str) -> list[str]:
    return [item for item in (part.strip() for part in text.split(",")) if item]
