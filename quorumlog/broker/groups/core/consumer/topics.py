"""The parts of the image that groups use: topics, by name and by expression, and group settings.

The seam to a library of regular expressions is `TopicMatcher`. It must match in time linear in the
length of the name for every expression, because clients send the expressions.
More than a few names are matched outside of the step: some expressions take 0.3 ms for each name.
docs/decisions/0032-group-threads.md
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Protocol

from quorumlog.broker.groups.core.consumer.partitions import TopicIdPartition
from quorumlog.invariants import require
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition

IsMatch = Callable[[str], bool]
EXPRESSIONS_MAX: Final = 100  # kept with their matches; clients can send any number of them
AT_ONCE_MAX: Final = 16  # names matched within one step or one change: 5 ms at most
AT_A_TIME_MAX: Final = 500  # names of one job; jobs of other expressions wait for it


class InvalidRegularExpression(ValueError):
    """The expression is not valid for RE2, or RE2 is not installed; the text is the reason."""


class TopicMatcher(Protocol):
    """Regular expressions with the syntax and the bounds of RE2."""

    def compile(self, expression: str) -> IsMatch:
        """Return a predicate that matches whole names. Raises InvalidRegularExpression."""


class NoExpressions:
    """The TopicMatcher of a broker without a library for expressions; `reason`: for clients."""

    def __init__(self, reason: str = "this broker reads no expressions") -> None:
        self._reason: Final = reason

    def compile(self, expression: str) -> IsMatch:
        """Refuse every expression."""
        del expression
        raise InvalidRegularExpression(self._reason)


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """The metadata of a topic that groups use."""

    topic_id: TopicId
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MatchJob:
    """Topic names to match with an expression. Immutable."""

    expression: str
    names: tuple[str, ...]
    is_match: IsMatch

    def run(self) -> frozenset[str]:
        """Return the names that match. Any thread may call this method."""
        return frozenset(filter(self.is_match, self.names))


@dataclass(slots=True)
class KnownExpression:
    """A recently used expression.

    Invariant: each existing topic was tried, or is in the job, or in `untried`. `matching` has
    exactly the tried topics that match. Whether a name matches never changes; topics may be created
    and deleted while a job is under way.
    """

    is_match: IsMatch
    matching: set[str] = field(default_factory=set)
    untried: list[str] = field(default_factory=list)
    job: MatchJob | None = None

    @property
    def is_behind(self) -> bool:
        """Whether some names are still untried."""
        return bool(self.untried) or self.job is not None


class Topics:
    """The topics of this broker's image, and the topics that match the expressions of groups.

    All coordinators of a broker share it: the driver changes it, then feeds them TopicsChanged. A
    new expression is tried with every topic, then with each new topic. `group_configs`: the
    settings of single groups. `has_authorizer`: members may describe some of the topics only.
    """

    def __init__(self, matcher: TopicMatcher, *, has_authorizer: bool = False) -> None:
        self._matcher: Final = matcher
        self.has_authorizer: Final = has_authorizer
        self.by_name: Final[dict[str, TopicDescription]] = {}
        self.names: Final[dict[TopicId, str]] = {}
        self.version = 0
        self.group_configs: Final[dict[str, Mapping[str, str]]] = {}
        self._expressions: Final[dict[str, KnownExpression]] = {}  # in the order of their last use

    def change(self, version: int, changed: Mapping[str, TopicDescription | None]) -> None:
        """Apply the changed topics of an image; None: the topic was deleted."""
        self.version = max(self.version, version)
        new_names = []
        for name, description in changed.items():
            known = self.by_name.pop(name, None)
            if known is not None:
                self.names.pop(known.topic_id, None)
            if description is not None:
                self.by_name[name] = description
                self.names[description.topic_id] = name
                if known is None:
                    new_names.append(name)
            else:
                for expression in self._expressions.values():
                    expression.matching.discard(name)
        at_once = len(new_names) * len(self._expressions) <= AT_ONCE_MAX
        for expression in self._expressions.values():
            self._try(expression, new_names, at_once=at_once)

    def configure(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Replace all settings of a group."""
        self.group_configs[group_id] = configs
        if not configs:
            del self.group_configs[group_id]

    # --- Expressions ---

    def matching(self, expression: str) -> frozenset[str] | None:
        """Return the names of the topics that match; None: some topics are still untried.

        Raises InvalidRegularExpression.
        """
        known = self._expressions.pop(expression, None)
        if known is None:
            known = KnownExpression(self._matcher.compile(expression))
            if not self._make_room():
                return None
            self._try(known, [*self.by_name], at_once=len(self.by_name) <= AT_ONCE_MAX)
        self._expressions[expression] = known
        return None if known.is_behind else frozenset(known.matching)

    def is_known(self, expression: str) -> bool:
        """Whether the expression is kept; False: there was no room for it."""
        return expression in self._expressions

    def take_jobs(self) -> list[MatchJob]:
        """Return new jobs to run; each expression has at most one job under way."""
        jobs = []
        for expression, known in self._expressions.items():
            if known.untried and known.job is None:
                names = tuple(known.untried[:AT_A_TIME_MAX])
                del known.untried[:AT_A_TIME_MAX]
                known.job = MatchJob(expression=expression, names=names, is_match=known.is_match)
                jobs.append(known.job)
        return jobs

    def note_matched(self, job: MatchJob, matching: Set[str]) -> None:
        """Apply the result of a job. Topics may have been deleted since the job was made."""
        known = self._expressions[job.expression]
        require(known.job is job, "a job that ends is under way")
        known.job = None
        known.matching |= matching & self.by_name.keys()

    def _try(self, known: KnownExpression, names: list[str], *, at_once: bool) -> None:
        if at_once:
            known.matching.update(filter(known.is_match, names))
        else:
            known.untried += names

    def _make_room(self) -> bool:
        """Drop the least recently used expression if necessary; return whether there is room."""
        if len(self._expressions) < EXPRESSIONS_MAX:
            return True
        unused = next((one for one, known in self._expressions.items() if not known.is_behind), "")
        return self._expressions.pop(unused, None) is not None

    # --- Topics by name ---

    def ids(self, names: Iterable[str]) -> frozenset[TopicId]:
        """Return the ids of the topics that exist."""
        return frozenset(
            found.topic_id for name in names if (found := self.by_name.get(name)) is not None
        )

    def partitions(self, named: Iterable[TopicPartition]) -> Iterator[TopicIdPartition | None]:
        """Yield the partitions by topic id; None: the topic does not exist."""
        for where in named:
            found = self.by_name.get(where.topic)
            yield None if found is None else TopicIdPartition(found.topic_id, where.partition)

    def metadata_hash(self, names: Iterable[str]) -> int:
        """Return a hash of these topics' names, ids and partition counts; 0: no topic exists.

        # DEVIATION: Kafka hashes with XXH3, and includes the racks of replicas. A group that a
        # Kafka broker wrote begins one more epoch here.
        # docs/decisions/0028-group-commits.md
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
