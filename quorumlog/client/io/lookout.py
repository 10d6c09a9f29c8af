"""Logs what a client waits for in vain: brokers, topics, partitions, leaders."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from quorumlog.client.core.absences import (
    CLUSTER,
    Absences,
    Notice,
    Subject,
    is_missing,
    missing_partitions,
    missing_topics,
)
from quorumlog.client.core.metadata_cache import MetadataCache, Node
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

_logger: Final = logging.getLogger(__name__)

WhyFailing = Callable[[Node], str | None]


class Lookout:
    """Compares what is needed with the metadata. The callables return what is needed now."""

    def __init__(self, client_id: str, metadata: MetadataCache, why_failing: WhyFailing) -> None:
        """`why_failing`: why a broker's data connection cannot be made; None if it can."""
        self.topics: Final[list[Callable[[], Iterable[str]]]] = []
        self.partitions: Final[list[Callable[[], Collection[TopicPartition]]]] = []
        self.refusals: Final[list[Callable[[], Mapping[TopicPartition, ErrorCode]]]] = []
        self._client_id: Final = client_id
        self._metadata: Final = metadata
        self._why_failing: Final = why_failing
        self._silence: Final = Absences()  # of all brokers
        self._absences: Final = Absences()

    def observe(self, now_ms: float, why_silent: str | None) -> None:
        """Handle new metadata, or why no broker answered (`why_silent`); log what is absent."""
        silence: dict[Subject, str] = {}
        if why_silent is not None:
            silence[CLUSTER] = f"no broker answers: {why_silent}"
        log_notices(self._client_id, self._silence.step(now_ms, silence))
        if why_silent is None:  # else nothing is known of the rest
            log_notices(self._client_id, self._absences.step(now_ms, self._absent()))

    def _absent(self) -> dict[Subject, str]:
        metadata = self._metadata
        absent = missing_topics(metadata, self.needed_topics())
        failing: dict[int, str | None] = {
            broker_id: self._why_failing(node) for broker_id, node in metadata.nodes.items()
        }
        for needed in self.partitions:
            partitions = needed()
            absent |= missing_partitions(metadata, partitions)
            for name in partitions:
                leader = metadata.leader(name)
                why = failing.get(leader.broker_id) if leader is not None else None
                if leader is not None and why is not None:
                    text = f"its leader, broker {leader.broker_id}, cannot be reached: {why}"
                    absent.setdefault(name, text)
        for refused in self.refusals:
            for name, code in refused().items():
                absent.setdefault(name, f"its leader refuses to be read: {code.name}")
        return absent

    def needed_topics(self) -> set[str]:
        """Return the topics that are needed now, whatever their partitions."""
        return {name for needed in self.topics for name in needed()}

    def missing_since(self, now_ms: float, duration_ms: float) -> list[TopicPartition]:
        """List needed partitions that do not exist since `duration_ms`; count them from now on."""
        missing = [
            name
            for name in self._absences.lasting(now_ms, duration_ms)
            if isinstance(name, TopicPartition) and is_missing(self._metadata, name)
        ]
        for name in missing:
            self._absences.restart(now_ms, name)
        return missing


def log_notices(client_id: str, notices: Iterable[Notice]) -> None:
    """Log what is absent as a WARNING, and what was found again as INFO."""
    for one in notices:
        level = logging.INFO if one.is_over else logging.WARNING
        _logger.log(level, "%s: %s", client_id, one.text)
