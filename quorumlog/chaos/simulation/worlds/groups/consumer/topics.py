"""Topics that are created, grown and deleted, and each broker's view of them.

No broker holds their partitions: groups use only the id and the partition count of a topic.
"""

import re
from collections.abc import Callable, Set
from typing import Final, NamedTuple

from quorumlog.broker.groups.core.consumer.partitions import Partitions, TopicIdPartition
from quorumlog.broker.groups.core.consumer.topics import IsMatch, TopicDescription, Topics
from quorumlog.chaos.simulation.kernel.randomness import Rng
from quorumlog.chaos.simulation.kernel.run import Environment
from quorumlog.wire.codec.identifiers import TopicId

STABLE: Final = "read"  # it is never deleted
VOLATILE: Final = ("more-a", "more-b")
CHANGE_US: Final = 1_500_000  # the mean time between two changes
TELL_US: Final = 300_000
GROWTH_MAX: Final = 3
ID_BYTES: Final = 16


class Change(NamedTuple):
    """A change of a topic: its new description, or None if it is deleted."""

    name: str
    description: TopicDescription | None


class TopicCatalogue:
    """All topics as the controller has them. The last change happens in the calm."""

    def __init__(self, environment: Environment, rng: Rng, partitions: int) -> None:
        self.changes: Final[list[Change]] = []
        self.by_name: Final[dict[str, TopicDescription]] = {}
        self.names: Final[dict[TopicId, str]] = {}  # of all topics, deleted ones too
        self.deleted: Final[set[str]] = set()  # names of deleted topics
        self.is_final = False  # the last change has happened
        self._environment: Final = environment
        self._rng: Final = rng
        self._partitions: Final = partitions
        self._create(STABLE, partitions)

    def run(self, tell: Callable[[], None]) -> None:
        """Change topics now and then; call `tell` after each change, and again periodically."""

        def change() -> None:
            if self._environment.is_calm:
                self._grow(STABLE)
                self.is_final = True
            else:
                self._change()
                self._environment.timeline.push(self._rng.randrange(2 * CHANGE_US), change)
            tell()

        def tell_again() -> None:
            tell()
            self._environment.timeline.push(TELL_US, tell_again)

        self._environment.timeline.push(self._rng.randrange(2 * CHANGE_US), change)
        tell_again()

    def matching(self, names: Set[str], expression: str) -> Set[str]:
        """Return the names of the topics that a subscription matches."""
        matched = {name for name in self.by_name if re.fullmatch(expression, name)}
        return (names & self.by_name.keys()) | matched

    def partitions(self, names: Set[str]) -> Partitions:
        """Return all partitions of these topics."""
        described = [self.by_name[name] for name in sorted(names)]
        return frozenset(
            TopicIdPartition(one.topic_id, index)
            for one in described
            for index in range(one.partitions)
        )

    def shown(self, partitions: Partitions) -> str:
        """Return partitions for the trace."""
        named = sorted((self.names[one.topic_id], one.partition) for one in partitions)
        return ",".join(f"{name}-{index}" for name, index in named)

    def _change(self) -> None:
        name = self._rng.choice((STABLE, *VOLATILE, *VOLATILE))
        if name not in self.by_name:
            self._create(name, self._rng.randrange(1, 4))
        elif name != STABLE and self._rng.random() < 0.5:
            del self.by_name[name]
            self.deleted.add(name)
            self.changes.append(Change(name, None))
        elif self.by_name[name].partitions < self._partitions + GROWTH_MAX:
            self._grow(name)

    def _create(self, name: str, partitions: int) -> None:
        number = len(self.changes) + 1
        topic_id = TopicId(number.to_bytes(2, "big") + name.encode().ljust(ID_BYTES - 2, b"."))
        self.names[topic_id] = name
        self._set(name, TopicDescription(topic_id, partitions))

    def _grow(self, name: str) -> None:
        known = self.by_name[name]
        self._set(name, TopicDescription(known.topic_id, known.partitions + 1))

    def _set(self, name: str, description: TopicDescription) -> None:
        self.by_name[name] = description
        self.changes.append(Change(name, description))


class KnownTopics:
    """The view that one broker process has of a catalogue; empty without one."""

    def __init__(self, catalogue: TopicCatalogue | None = None) -> None:
        self._changes: Final = [] if catalogue is None else catalogue.changes
        self.forget()

    def forget(self) -> None:
        """Reset the view for a new process."""
        self.topics = Topics(_Expressions())
        self._known = 0

    def learn_all(self) -> None:
        """Apply all changes."""
        self.learn(len(self._changes))

    def learn(self, end: int) -> tuple[tuple[str, ...], frozenset[str]]:
        """Apply the first `end` changes; return the names of deleted and of changed topics."""
        new = self._changes[self._known : end]
        self._known = max(self._known, end)
        for number, (name, description) in enumerate(new):
            self.topics.change(self._known + number, {name: description})
        deleted = sorted({one.name for one in new if one.description is None})
        return tuple(deleted), frozenset(one.name for one in new)


class _Expressions:
    """A TopicMatcher: the world's expressions match alike in Python and in RE2."""

    def compile(self, expression: str) -> IsMatch:
        pattern = re.compile(expression)

        def is_match(name: str) -> bool:
            return pattern.fullmatch(name) is not None

        return is_match
