"""Decides when a client logs that it waits for a broker, topic, partition or leader.

An absence shorter than `REPORT_AFTER_MS`, such as a failover, is not reported. A longer absence is
reported once with its cause, again every `REPORT_AGAIN_MS`, and once when it is over.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from quorumlog.client.core.metadata_cache import MetadataCache
from quorumlog.client.errors import DENIED
from quorumlog.wire.codec.error_codes import RETRIABLE, ErrorCode, known
from quorumlog.wire.codec.identifiers import TopicPartition

REPORT_AFTER_MS: Final = 3_000
REPORT_AGAIN_MS: Final = 60_000
GAP_MS: Final = 10_000
"""After a gap this long between steps, absences count anew: their subjects may have been found."""
NAMED_MAX: Final = 5
NO_LEADER: Final = "no broker leads it"

Subject = TopicPartition | str
"""A partition, or the name of a missing topic or cluster."""
CLUSTER: Final = "the cluster"
_NO_TIMES: Final[Mapping[Subject, float]] = {}


@dataclass(slots=True)
class _Absence:
    since_ms: float
    reported_ms: float | None = None


class Notice(NamedTuple):
    """A line to log. `is_over`: the absence or wait has ended."""

    text: str
    is_over: bool


class Absences:
    """The current absences, their begin and last report. Bounded by the needed topics."""

    def __init__(self) -> None:
        self._absent: dict[Subject, _Absence] = {}
        self._looked_ms = float("-inf")

    def step(
        self,
        now_ms: float,
        causes: Mapping[Subject, str],
        since_ms: Mapping[Subject, float] = _NO_TIMES,
    ) -> list[Notice]:
        """Record `causes`, the causes of all current absences; return the lines to log.

        `since_ms`: when an absence began; by default at the first step that has it.
        """
        if now_ms - self._looked_ms > GAP_MS:
            for absence in self._absent.values():
                absence.since_ms = now_ms
        self._looked_ms = now_ms
        gone = [name for name in self._absent if name not in causes]
        ended = {name: self._absent.pop(name) for name in gone}
        over = [name for name, absence in ended.items() if absence.reported_ms is not None]
        for name in causes:
            self._absent.setdefault(name, _Absence(since_ms.get(name, now_ms)))
        notices = [Notice(f"{listed(over)}: found", is_over=True)] if over else []
        by_cause: dict[str, list[Subject]] = {}
        for name, cause in causes.items():
            by_cause.setdefault(cause, []).append(name)
        for cause, names in by_cause.items():
            notices += self._due(now_ms, cause, names)
        return notices

    def _due(self, now_ms: float, cause: str, names: list[Subject]) -> list[Notice]:
        lasting = [one for one in names if now_ms - self._absent[one].since_ms >= REPORT_AFTER_MS]
        told = [self._absent[name].reported_ms for name in lasting]
        if not any(ms is None or now_ms - ms >= REPORT_AGAIN_MS for ms in told):
            return []
        for name in lasting:
            self._absent[name].reported_ms = now_ms
        seconds = (now_ms - min(self._absent[name].since_ms for name in lasting)) / 1000
        return [Notice(f"{listed(lasting)}: {cause} (for {seconds:.0f} s)", is_over=False)]

    def lasting(self, now_ms: float, duration_ms: float) -> list[Subject]:
        """List the subjects absent for at least `duration_ms`."""
        return [name for name, one in self._absent.items() if now_ms - one.since_ms >= duration_ms]

    def restart(self, now_ms: float, subject: Subject) -> None:
        """Count the absence of `subject` from now on."""
        if subject in self._absent:
            self._absent[subject].since_ms = now_ms


def listed(names: Iterable[Subject]) -> str:
    """Return the first `NAMED_MAX` names, and the number of the others."""
    texts = [str(name) for name in names]
    more = len(texts) - NAMED_MAX
    return ", ".join(texts[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def missing_topics(metadata: MetadataCache, topics: Iterable[str]) -> dict[Subject, str]:
    """Return the topics with an error in the metadata, with the cause of each."""
    missing: dict[Subject, str] = {}
    for name in topics:
        view = metadata.topics.get(name)
        if view is not None and view.error_code != ErrorCode.NONE:
            missing[f"topic {name!r}"] = _why(view.error_code)
    return missing


def missing_partitions(
    metadata: MetadataCache, partitions: Iterable[TopicPartition]
) -> dict[Subject, str]:
    """Return the partitions that do not exist or have no leader, with the cause of each."""
    missing: dict[Subject, str] = {}
    for name in partitions:
        view = metadata.topics.get(name.topic)
        if view is None:
            continue  # not requested yet
        partition = view.partitions.get(name.partition)
        if _is_unknown(view.error_code):
            missing[name] = f"topic {name.topic!r} does not exist"
        elif partition is None and view.error_code != ErrorCode.NONE:
            missing[name] = _why(view.error_code)
        elif partition is None:
            missing[name] = f"{name.topic} has {len(view.partitions)} partitions, counted from 0"
        elif partition.leader_id < 0:
            missing[name] = NO_LEADER
    return missing


def is_missing(metadata: MetadataCache, name: TopicPartition) -> bool:
    """Return whether the partition is absent from the cluster's metadata."""
    view = metadata.topics.get(name.topic)
    if view is None or (view.error_code != ErrorCode.NONE and not _is_unknown(view.error_code)):
        return False
    return _is_unknown(view.error_code) or name.partition not in view.partitions


def may_appear(metadata: MetadataCache, topics: Iterable[str]) -> bool:
    """Return whether a topic is missing, but may be created, or allowed by an ACL, at any time."""
    views = [metadata.topics.get(name) for name in topics]
    return any(
        view is not None and not view.partitions and known(view.error_code) in RETRIABLE | DENIED
        for view in views
    )


def _is_unknown(error_code: int) -> bool:
    return known(error_code) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _why(error_code: int) -> str:
    if _is_unknown(error_code):
        return "does not exist"
    return known(error_code).name
