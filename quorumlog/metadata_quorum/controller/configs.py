"""Topic configuration: which names and values are taken.

An unknown name is refused with the nearest known one. Values are read as Java reads them: without
blanks around them, booleans in any case, digits of any script. They are kept as they were
understood.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from quorumlog.metadata_quorum.controller.partitions import MIN_INSYNC_REPLICAS
from quorumlog.metadata_quorum.image.records import TOPIC_RESOURCE, Config, MetadataRecord

Check = Callable[[str], str | None]  # the value -> what is wrong with it, or None

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_SEGMENT_BYTES_MIN: Final = 1 << 20  # KIP-1030
_BLANKS: Final = "".join(map(chr, range(ord(" ") + 1)))  # what Java's `trim` takes away
# Narrower than `int` and `float`: neither 1_0 nor nan is a number to Java's parsers.
_WHOLE: Final = re.compile(r"[+-]?\d+")
_COMMA: Final = re.compile(r"\s*,\s*")
_DECIMAL: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def _between(least: int, most: int) -> Check:
    def check(value: str) -> str | None:
        try:
            number = int(value) if _WHOLE.fullmatch(value) else None
        except ValueError:  # too many digits for anything
            number = None
        if number is None:
            return "Not a number"
        if number < least:
            return f"Value must be at least {least}"
        return f"Value must be at most {most}" if number > most else None

    return check


def _one_of(*values: str) -> Check:
    def check(value: str) -> str | None:
        return None if value in values else f"String must be one of: {', '.join(values)}"

    return check


def _ratio(value: str) -> str | None:
    if _DECIMAL.fullmatch(value) is None:
        return "Not a number"
    return None if 0 <= float(value) <= 1 else "Value must be between 0 and 1"


def _cleanup_policy(value: str) -> str | None:
    known = not value or {*_COMMA.split(value)} <= {"compact", "delete"}  # none: keep everything
    return None if known else "List must be made of: compact, delete"


def _boolean(value: str) -> str | None:
    is_known = value.lower() in {"true", "false"}
    return None if is_known else "Expected value to be either true or false"


def _no_remote_storage(value: str) -> str | None:
    problem = _boolean(value)
    if problem is None and value.lower() == "true":
        return "Tiered storage is not there: topics cannot be configured with remote log storage"
    return problem


def _anything(value: str) -> str | None:
    del value  # a list of replicas to throttle, which the throttling checks
    return None


_POSITIVE_LONG: Final = _between(0, _LONG_MAX)
TOPIC_CONFIGS: Final[Mapping[str, Check]] = MappingProxyType(
    {
        "cleanup.policy": _cleanup_policy,
        "compression.gzip.level": _between(-1, 9),
        "compression.lz4.level": _between(1, 17),
        "compression.type": _one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "compression.zstd.level": _between(-131072, 22),
        "delete.retention.ms": _POSITIVE_LONG,
        "file.delete.delay.ms": _POSITIVE_LONG,
        "flush.messages": _between(1, _LONG_MAX),
        "flush.ms": _POSITIVE_LONG,
        "follower.replication.throttled.replicas": _anything,
        "index.interval.bytes": _between(0, _INT_MAX),
        "leader.replication.throttled.replicas": _anything,
        "local.retention.bytes": _between(-2, _LONG_MAX),
        "local.retention.ms": _between(-2, _LONG_MAX),
        "max.compaction.lag.ms": _between(1, _LONG_MAX),
        "max.message.bytes": _between(0, _INT_MAX),
        "message.timestamp.after.max.ms": _POSITIVE_LONG,
        "message.timestamp.before.max.ms": _POSITIVE_LONG,
        "message.timestamp.type": _one_of("CreateTime", "LogAppendTime"),
        "min.cleanable.dirty.ratio": _ratio,
        "min.compaction.lag.ms": _POSITIVE_LONG,
        MIN_INSYNC_REPLICAS: _between(1, _INT_MAX),
        "preallocate": _boolean,
        "remote.storage.enable": _no_remote_storage,
        "retention.bytes": _between(-1, _LONG_MAX),
        "retention.ms": _between(-1, _LONG_MAX),
        "segment.bytes": _between(_SEGMENT_BYTES_MIN, _INT_MAX),
        # DEVIATION: Kafka takes 4 to 11, too. No index entry fits: our logs refuse to open.
        # docs/decisions/0015-a-configuration-that-cannot-work-is-refused.md
        "segment.index.bytes": _between(12, _INT_MAX),
        "segment.jitter.ms": _POSITIVE_LONG,
        "segment.ms": _between(1, _LONG_MAX),
        "unclean.leader.election.enable": _boolean,
    }
)


def _alike(name: str) -> list[str]:
    """Return the few names worth a closer look: that costs 10 us each, and there may be many."""
    return [
        known
        for known in TOPIC_CONFIGS
        if known[0] == name[:1] and abs(len(known) - len(name)) <= 3
    ]


def config_error(name: str, value: str) -> str | None:
    """Return what is wrong with one entry, or None."""
    check = TOPIC_CONFIGS.get(name)
    if check is None:
        near = difflib.get_close_matches(name, _alike(name), n=1)
        hint = f", did you mean {near[0]}?" if near else ""
        return f"Unknown topic config name: {name}{hint}"
    problem = check(value.strip(_BLANKS))
    return None if problem is None else f"Invalid value {value} for configuration {name}: {problem}"


def configs_error(configs: Mapping[str, str]) -> str | None:
    """Return what is wrong with the first bad entry, or None."""
    problems = (config_error(name, value) for name, value in configs.items())
    return next((problem for problem in problems if problem is not None), None)


def kept_value(name: str, value: str) -> str:
    """Return a value without error in the one form in which it is kept, and described."""
    text = value.strip(_BLANKS)
    if TOPIC_CONFIGS[name] in {_anything, _ratio}:
        return text
    if _WHOLE.fullmatch(text):
        return str(int(text))
    if _boolean(text) is None:
        return text.lower()
    return ",".join(_COMMA.split(text))


def config_records(topic: str, configs: Mapping[str, str]) -> list[MetadataRecord]:
    """Return the records that configure a new topic."""
    kept = {name: kept_value(name, value) for name, value in sorted(configs.items())}
    return [
        Config(resource_type=TOPIC_RESOURCE, resource_name=topic, name=name, value=value)
        for name, value in kept.items()
    ]
