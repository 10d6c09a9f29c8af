"""The settings of a mirror, checked when they are made."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from quorumlog.client.settings import CompressionType

EXCLUDED_TOPICS: Final = (r"mm2.*\.internal", r".*\.replica", r"__.*")
"""The default of MirrorMaker 2: `topics.exclude`."""
EXCLUDED_GROUPS: Final = ("console-consumer-.*", "connect-.*", "__.*")
"""The default of MirrorMaker 2: `groups.exclude`."""
_ALIAS: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_PREFIX: Final = re.compile(r"[A-Za-z0-9._-]{0,120}")

OnRecreated = Literal["stop", "follow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSettings:
    """The topics and groups that a mirror copies, and its two clusters.

    source, target: arguments of a client, `bootstrap_servers` among them.
    topics, exclude: regular expressions of whole topic names at the source.
    alias: the name of the source at the target. Two mirrors of one alias fence each other.
    prefix: of the copies' names; None: the alias and a dot; "": the same names.
    groups, exclude_groups: as for topics; the groups whose offsets are translated.
    exactly_once: one transaction for each poll, with the position in it. Otherwise a killed mirror
        copies the records since its last position again.
    once: `run` returns after everything that the source had at the start is copied.
    on_recreated: a topic that was deleted and created again stops, or is copied from its start.
    acls: the ACLs of the topics are copied, too, but the right to write (`core.topic_acls`).
    replication_factor: of created topics; None: the source's, at most the number of brokers.
    mm2_compatible: also write MirrorMaker 2's internal topics (KIP-382), with `target_alias`.
    *_interval_ms: between two refreshes of the topics, and of their settings (MirrorMaker 2's ten
        minutes); between two commits for groups.
    poll_records, poll_bytes: the most that one transaction copies.
    Raises ValueError.
    """

    source: Mapping[str, Any]
    target: Mapping[str, Any]
    topics: tuple[str, ...]
    exclude: tuple[str, ...] = EXCLUDED_TOPICS
    alias: str = "source"
    target_alias: str | None = None
    prefix: str | None = None
    groups: tuple[str, ...] = (".*",)
    exclude_groups: tuple[str, ...] = EXCLUDED_GROUPS
    exactly_once: bool = False
    once: bool = False
    on_recreated: OnRecreated = "stop"
    acls: bool = False
    replication_factor: int | None = None
    compression_type: CompressionType = "none"
    mm2_compatible: bool = False
    refresh_interval_ms: int = 30_000
    config_interval_ms: int = 600_000
    group_interval_ms: int = 10_000
    poll_records: int = 20_000
    poll_bytes: int = 8 * 1024 * 1024

    def __post_init__(self) -> None:
        if not all(self.topics) or not self.topics:
            raise ValueError("a mirror needs a regular expression of topics that is not empty")
        for name in ("alias", "target_alias"):
            alias = getattr(self, name)
            if alias is not None and not _ALIAS.fullmatch(alias):
                raise ValueError(f"{name} {alias!r}: use letters, digits, _ and -")
        if not _PREFIX.fullmatch(self.copy_prefix):
            raise ValueError(f"prefix {self.prefix!r}: use letters, digits, '.', _ and -")
        if self.mm2_compatible and self.target_alias is None:
            raise ValueError("mm2_compatible needs a target_alias: it is in the topics' names")
        for expression in (*self.topics, *self.exclude, *self.groups, *self.exclude_groups):
            _check_expression(expression)
        intervals = "refresh_interval_ms", "config_interval_ms", "group_interval_ms"
        for name in (*intervals, "poll_records", "poll_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be above 0")

    @property
    def copy_prefix(self) -> str:
        """Return the prefix of the names of copies; "" for the same names."""
        return f"{self.alias}." if self.prefix is None else self.prefix

    @property
    def positions_topic(self) -> str:
        """Return the name of the compacted topic at the target that has the positions."""
        return f"mirror.{self.alias}.positions"


def _check_expression(text: str) -> None:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from None
