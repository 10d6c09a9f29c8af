"""Decides which topics and groups are mirrored, under which names, and where a loop would close.

Names are MirrorMaker 2's (KIP-382): a copy has the source's alias and a dot before its name, so the
aliases before a name are the clusters that it came through. A topic is not copied back to a cluster
whose alias it carries. Under the same names nothing shows that; there the positions topics show it,
which every mirror keeps at its target.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from quorumlog.mirror.core.position_records import Generation
from quorumlog.mirror.settings import MirrorSettings

OWN_TOPICS: Final = r"mirror\..*\.positions"
"""Each cluster's own: the positions of the mirrors that write to it."""
HEARTBEATS: Final = "heartbeats"
_SEPARATOR: Final = "."
_NAMED_MAX: Final = 5


class Expressions:
    """Regular expressions of whole names; `excluded` wins."""

    def __init__(self, included: Iterable[str], excluded: Iterable[str]) -> None:
        self._included: Final = [re.compile(one) for one in included]
        self._excluded: Final = [re.compile(one) for one in excluded]

    def __contains__(self, name: object) -> bool:
        return (
            isinstance(name, str)
            and any(one.fullmatch(name) for one in self._included)
            and not any(one.fullmatch(name) for one in self._excluded)
        )


class TopicNames:
    """The topics of one mirror, and the names of their copies.

    returning: prefixes of topics at the source that are copies of the target's topics. `beats`:
    heartbeats are copied, too, with the alias before their name, as MirrorMaker 2 does always.
    """

    def __init__(
        self,
        topics: Sequence[str],
        exclude: Sequence[str],
        *,
        prefix: str,
        alias: str,
        target_alias: str | None,
        returning: Iterable[str] = (),
        beats: bool = False,
    ) -> None:
        self._topics: Final = Expressions(topics, (*exclude, OWN_TOPICS))
        self._prefix: Final = prefix
        self._alias: Final = alias
        self._target_alias: Final = target_alias
        self._returning: Final = tuple(one for one in returning if one)
        self._beats: Final = beats

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str) or self.is_returning(name):
            return False
        return name in self._topics or self.is_heartbeat(name)

    def copy_of(self, name: str) -> str:
        """Return the name at the target."""
        if self.is_heartbeat(name):
            return f"{self._alias}{_SEPARATOR}{name}"
        return self._prefix + name

    def is_heartbeat(self, name: str) -> bool:
        """Return whether the topic is copied, whatever the expressions."""
        return self._beats and name.rsplit(_SEPARATOR, maxsplit=1)[-1] == HEARTBEATS

    def is_returning(self, name: str) -> bool:
        """Return whether the topic came from the target, or would pass the source a second time.

        The last part of a name is no alias, nor is the source's own alias at the front: such a
        topic was created with that name.
        """
        if not self._prefix:
            return False
        hops = name.split(_SEPARATOR)[:-1]
        return (
            name.startswith(self._returning)
            or self._target_alias in hops
            or self._alias in hops[1:]
        )


def why_no_topic(expressions: Sequence[str], names_at_source: Iterable[str]) -> str:
    """Return why no topic is selected, for the person who wrote the expressions.

    names_at_source: of all topics that the user may describe.
    """
    wanted = [re.compile(one) for one in expressions]
    names = sorted(names_at_source)
    reason = f"the source has no topic that matches {' or '.join(expressions)}"
    if matching := [name for name in names if any(one.fullmatch(name) for one in wanted)]:
        return (
            f"{reason}, but topics that are excluded or copies of the target's: {some_of(matching)}"
        )
    if near := [name for name in names if any(one.search(name) for one in wanted)]:
        return f"{reason}: an expression must match the whole name, such as {some_of(near)}"
    if names:
        return f"{reason}: this user may describe {some_of(names)}"
    return f"{reason}: it has none that this user may describe"


def some_of(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    left = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {left} more" if left > 0 else "")


def topic_names(
    settings: MirrorSettings, mirrors_here: Iterable[Generation], target_cluster: str | None
) -> TopicNames:
    """Return the topics of a mirror. `mirrors_here`: the mirrors that write to the source."""
    return TopicNames(
        settings.topics,
        settings.exclude,
        prefix=settings.copy_prefix,
        alias=settings.alias,
        target_alias=settings.target_alias,
        returning=returning_prefixes(mirrors_here, target_cluster),
        beats=settings.mm2_compatible,
    )


def returning_prefixes(mirrors_here: Iterable[Generation], target_cluster: str | None) -> list[str]:
    """Return the prefixes at the source of copies that came from the target.

    `mirrors_here`: the mirrors that write to the source.
    """
    return [one.prefix for one in mirrors_here if _is_from(one, target_cluster) and one.prefix]


def loop_under_same_names(
    mirrors_here: Iterable[Generation], target_cluster: str | None, own: Generation
) -> str | None:
    """Return why records would circulate under the same names; None if they cannot.

    Each of two opposite mirrors writes its Generation before it reads the other's, so at least one
    of two that start together finds the other.
    """
    if own.prefix:
        return None
    for other in mirrors_here:
        if _is_from(other, target_cluster) and not other.prefix and _may_overlap(own, other):
            topics = " and ".join(sorted({*own.topics, *other.topics}))
            return (
                f"a mirror copies {topics} from the target to the source under the same names, so"
                " records would circulate: give one of the two mirrors a prefix, or topics of its"
                " own"
            )
    return None


def _is_from(one: Generation, cluster: str | None) -> bool:
    return cluster is not None and one.source_cluster == cluster


def _may_overlap(own: Generation, other: Generation) -> bool:
    """Return whether a topic may belong to both mirrors.

    Only plain names are compared: whether two expressions share a name is not decided here, so they
    count as overlapping.
    """
    if not all(map(_is_plain, own.topics)):
        own, other = other, own
    if not all(map(_is_plain, own.topics)):
        return True
    mine, others = Expressions(own.topics, own.exclude), Expressions(other.topics, other.exclude)
    return any(_name(one) in mine and _name(one) in others for one in own.topics)


def _is_plain(expression: str) -> bool:
    return re.fullmatch(r"(?:[A-Za-z0-9_-]|\\?\.)+", expression) is not None


def _name(expression: str) -> str:
    return expression.replace("\\.", ".")
