"""Topic configuration: which names and values are valid, and the form in which they are stored.

An unknown name is refused with the nearest known one. Values are stored in one normal form.
"""

import difflib
from collections.abc import Mapping

from quorumlog.metadata_quorum.image.records import TOPIC_RESOURCE, Config, MetadataRecord
from quorumlog.settings.kinds import BadValue
from quorumlog.settings.topics import TOPIC_SETTINGS


def _alike(name: str) -> list[str]:
    """Return the few names to compare in full, which costs 10 us each."""
    return [
        known
        for known in TOPIC_SETTINGS
        if known[0] == name[:1] and abs(len(known) - len(name)) <= 3
    ]


def config_error(name: str, value: str) -> str | None:
    """Return what is wrong with one entry, or None."""
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        near = difflib.get_close_matches(name, _alike(name), n=1)
        hint = f", did you mean {near[0]}?" if near else ""
        return f"Unknown topic config name: {name}{hint}"
    try:
        setting.kind.normalize(value)
    except BadValue as error:
        return f"Invalid value {value} for configuration {name}: {error}"
    return None


def configs_error(configs: Mapping[str, str]) -> str | None:
    """Return what is wrong with the first bad entry, or None."""
    problems = (config_error(name, value) for name, value in configs.items())
    return next((problem for problem in problems if problem is not None), None)


def kept_value(name: str, value: str) -> str:
    """Return the normal form of a valid value, in which it is stored and described."""
    return TOPIC_SETTINGS[name].kind.normalize(value)


def config_records(topic: str, configs: Mapping[str, str]) -> list[MetadataRecord]:
    """Return the records that configure a new topic."""
    kept = {name: kept_value(name, value) for name, value in sorted(configs.items())}
    return [
        Config(resource_type=TOPIC_RESOURCE, resource_name=topic, name=name, value=value)
        for name, value in kept.items()
    ]
