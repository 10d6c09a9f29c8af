"""What groups are shown of the image: topics, by name and by regular expression, and settings.

The seam to a library of regular expressions is `TopicMatcher`. It must take time linear in the
length of the name, whatever the expression: an expression comes from a client.
docs/decisions/0122-expressions-of-topics-are-re2s.md
Names are tried outside of the step, unless they are few: some expressions take 0.3 ms for each.
docs/decisions/0139-names-are-tried-outside-of-the-step.md
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Protocol

from quorumlog.broker.groups.core.consumer.partitions import TopicIdPartition
from quorumlog.invariants import require
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition

IsMatch = Callable[[str], bool]
EXPRESSIONS_MAX: Final = 100  # whose matches are kept; clients choose how many there are
AT_ONCE_MAX: Final = 16  # names that are tried within one step or one change: 5 ms at most
AT_A_TIME_MAX: Final = 500  # names of one job, behind which others wait


class InvalidRegularExpression(ValueError):
    """The expression is not one of RE2's, or RE2 is not installed; the text says why."""


class TopicMatcher(Protocol):
    """Regular expressions with the syntax and the bounds of RE2."""

    def compile(self, expression: str) -> IsMatch:
        """Return whether a whole name matches. Raises InvalidRegularExpression."""


class NoExpressions:
    """A TopicMatcher of a broker without a library for them; `reason` says why it has none."""

    def __init__(self, reason: str = "this broker reads no expressions") -> None:
        self._reason: Final = reason

    def compile(self, expression: str) -> IsMatch:
        """Refuse every expression."""
        del expression
        raise InvalidRegularExpression(self._reason)


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """What a group needs to know of a topic."""

    topic_id: TopicId
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MatchJob:
    """Names to try. Nothing in it changes."""

    expression: str
    names: tuple[str, ...]
    is_match: IsMatch

    def run(self) -> frozenset[str]:
        """Return the names that match. It may be called in any thread."""
        return frozenset(filter(self.is_match, self.names))


@dataclass(slots=True)
class KnownExpression:
    """An expression that was asked for lately.

    Invariant: each topic there is was tried, or is in the job, or in `untried`. `matching` has all
    that were tried and match, and no other. Whether a name matches never changes; which names there
    are does, while a job is under way.
    """

    is_match: IsMatch
    matching: set[str] = field(default_factory=set)
    untried: list[str] = field(default_factory=list)
    job: MatchJob | None = None

    @property
    def is_behind(self) -> bool:
        """Whether there are names that were not tried."""
        return bool(self.untried) or self.job is not None


class Topics:
    """What this broker's image shows, and which topics match the expressions of groups.

    All coordinators of a broker share it: the driver changes it, then tells them (`TopicsChanged`).
    An expression is tried on every topic once; from then on, on topics that appear.
    `group_configs`: what single groups set.
    """

    def __init__(self, matcher: TopicMatcher) -> None:
        self._matcher: Final = matcher
        self.by_name: Final[dict[str, TopicDescription]] = {}
        self.names: Final[dict[TopicId, str]] = {}
        self.version = 0
        self.group_configs: Final[dict[str, Mapping[str, str]]] = {}
        self._expressions: Final[dict[str, KnownExpression]] = {}  # the last used one comes last

    def change(self, version: int, changed: Mapping[str, TopicDescription | None]) -> None:
        """Take what an image shows of these topics; None: it is deleted."""
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
        """Let this be all that a group sets."""
        self.group_configs[group_id] = configs
        if not configs:
            del self.group_configs[group_id]

    # --- Expressions ---

    def matching(self, expression: str) -> frozenset[str] | None:
        """Return the names of the topics that match; None: not all of them have been tried.

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
        """Whether it is being tried, or was; else there was no room for it."""
        return expression in self._expressions

    def take_jobs(self) -> list[MatchJob]:
        """Return the jobs to run from now on; one of each expression at most is under way."""
        jobs = []
        for expression, known in self._expressions.items():
            if known.untried and known.job is None:
                names = tuple(known.untried[:AT_A_TIME_MAX])
                del known.untried[:AT_A_TIME_MAX]
                known.job = MatchJob(expression=expression, names=names, is_match=known.is_match)
                jobs.append(known.job)
        return jobs

    def note_matched(self, job: MatchJob, matching: Set[str]) -> None:
        """Take what a job has found. Topics may have come and gone since it was made."""
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
        """Drop the expression that was not used for longest, if there are too many."""
        if len(self._expressions) < EXPRESSIONS_MAX:
            return True
        unused = next((one for one, known in self._expressions.items() if not known.is_behind), "")
        return self._expressions.pop(unused, None) is not None

    # --- Topics by name ---

    def ids(self, names: Iterable[str]) -> frozenset[TopicId]:
        """Return the ids of those that exist."""
        return frozenset(
            found.topic_id for name in names if (found := self.by_name.get(name)) is not None
        )

    def partitions(self, named: Iterable[TopicPartition]) -> Iterator[TopicIdPartition | None]:
        """Yield partitions with the ids of their topics; None: there is no topic of that name."""
        for where in named:
            found = self.by_name.get(where.topic)
            yield None if found is None else TopicIdPartition(found.topic_id, where.partition)

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
