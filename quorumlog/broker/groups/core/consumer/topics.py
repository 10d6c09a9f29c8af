"""What groups are shown of the image: topics, by name and by regular expression, and settings.

The seam to a library of regular expressions is `TopicMatcher`. It must take time linear in the
length of the name, whatever the expression: an expression comes from a client.
docs/decisions/0122-expressions-of-topics-are-re2s.md
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Protocol

from quorumlog.wire.codec.identifiers import TopicId

IsMatch = Callable[[str], bool]
EXPRESSIONS_MAX: Final = 100  # whose matches are kept; clients choose how many there are


class InvalidRegularExpression(ValueError):
    """The expression is not one of RE2's; the text says why."""


class TopicMatcher(Protocol):
    """Regular expressions with the syntax and the bounds of RE2."""

    def compile(self, expression: str) -> IsMatch:
        """Return whether a whole name matches. Raises InvalidRegularExpression."""


class NoExpressions:
    """A TopicMatcher of a broker without a library for them."""

    def compile(self, expression: str) -> IsMatch:
        """Refuse every expression."""
        raise InvalidRegularExpression(f"{expression!r}: this broker reads no expressions")


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """What a group needs to know of a topic."""

    topic_id: TopicId
    partitions: int


class Topics:
    """What this broker's image shows, and which topics match the expressions of groups.

    All coordinators of a broker share it: the driver changes it, then tells them (`TopicsChanged`).
    Invariant: `_matches` has every topic that matches, for each expression that was asked for
    lately. An expression is tried on every topic once; from then on, on topics that appear.
    `group_configs`: what single groups set.
    """

    def __init__(self, matcher: TopicMatcher) -> None:
        self._matcher: Final = matcher
        self.by_name: Final[dict[str, TopicDescription]] = {}
        self.names: Final[dict[TopicId, str]] = {}
        self.version = 0
        self.group_configs: Final[dict[str, Mapping[str, str]]] = {}
        self._matches: dict[str, tuple[IsMatch, set[str]]] = {}

    def change(self, version: int, changed: Mapping[str, TopicDescription | None]) -> None:
        """Take what an image shows of these topics; None: it is deleted."""
        self.version = max(self.version, version)
        for name, description in changed.items():
            known = self.by_name.pop(name, None)
            if known is not None:
                self.names.pop(known.topic_id, None)
            if description is not None:
                self.by_name[name] = description
                self.names[description.topic_id] = name
            for is_match, matching in self._matches.values():
                if description is None:
                    matching.discard(name)
                elif known is None and is_match(name):
                    matching.add(name)

    def configure(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Let this be all that a group sets."""
        self.group_configs[group_id] = configs
        if not configs:
            del self.group_configs[group_id]

    def matching(self, expression: str) -> frozenset[str]:
        """Return the names of the topics that match. Raises InvalidRegularExpression."""
        known = self._matches.pop(expression, None)
        if known is None:
            is_match = self._matcher.compile(expression)
            known = is_match, {*filter(is_match, self.by_name)}
            if len(self._matches) >= EXPRESSIONS_MAX:
                del self._matches[next(iter(self._matches))]
        self._matches[expression] = known  # the last one to be dropped
        return frozenset(known[1])

    def ids(self, names: Iterable[str]) -> frozenset[TopicId]:
        """Return the ids of those that exist."""
        return frozenset(
            found.topic_id for name in names if (found := self.by_name.get(name)) is not None
        )

    def metadata_hash(self, names: Iterable[str]) -> int:
        """Return a number that changes when one of these topics comes, goes or grows; 0: none is.

        # DEVIATION: Kafka hashes by XXH3, and the racks of replicas, too. A group that a Kafka
        # broker wrote begins one more epoch here.
        # docs/decisions/0121-a-consumer-group-changes-at-once-and-answers-when-committed.md
        """
        existing = [(name, self.by_name[name]) for name in sorted({*names} & self.by_name.keys())]
        if not existing:
            return 0
        digest = blake2b(digest_size=8)
        for name, description in existing:
            encoded = name.encode()
            digest.update(len(encoded).to_bytes(4, "big") + encoded + description.topic_id)
            digest.update(description.partitions.to_bytes(4, "big"))
        return int.from_bytes(digest.digest(), "big", signed=True)
