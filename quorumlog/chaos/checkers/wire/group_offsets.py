"""Rules of the offsets of a group that has one client and no members.

A coordinator that has acknowledged a commit returns its offset on the same connection until the
next commit. A commit of a member that does not exist is refused (KIP-9, KIP-848).
"""

from collections.abc import Iterator, Sequence
from typing import Final

from quorumlog.chaos.checkers.wire.appends import Add
from quorumlog.chaos.checkers.wire.facts import GroupCommit, GroupOffset, KeyFacts

_NONE: Final = 0


def check_group_offsets(facts: KeyFacts, add: Add) -> Iterator[str]:
    """Apply both rules; yield the name of each rule that judged a response."""
    for commit in facts.commits:
        if commit.is_ghost and commit.error is not None:
            yield "ghost-commit"
            if commit.error == _NONE:
                note = f"{commit.group}: a member that does not exist committed {commit.offset}"
                add("ghost-commit-accepted", note, ("committed", commit.row))
    for fetched in facts.group_offsets:
        commit_before = _last(facts.commits, fetched)
        if commit_before is None or fetched.error != _NONE:
            continue
        yield "group-offset"
        if fetched.offset != commit_before.offset:
            note = f"{fetched.group}: {fetched.offset}, and {commit_before.offset} was committed"
            told = ("committed", commit_before.row), ("fetched", fetched.row)
            add("committed-offset-lost", note, *told)


def _last(commits: Sequence[GroupCommit], fetched: GroupOffset) -> GroupCommit | None:
    """Return the last commit in front of a request on its connection, if it was acknowledged."""
    before = [
        one
        for one in commits
        if one.group == fetched.group
        and not one.is_ghost
        and fetched.exchange.is_behind(one.exchange)
    ]
    last = max(before, key=lambda one: one.exchange.place, default=None)
    return last if last is not None and last.error == _NONE else None
