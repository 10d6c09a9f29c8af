"""Runs of offsets translate as a list of all records does, and survive restarts and thinning."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from quorumlog.mirror.core.offset_runs import OffsetRun, OffsetRuns, runs_of

FIRST_UPSTREAM, FIRST_DOWNSTREAM = 5, 100


class Copy(NamedTuple):
    """One copied record: its offset at the source and at the target."""

    upstream: int
    downstream: int


@st.composite
def copies(draw: st.DrawFn) -> list[Copy]:
    """Return copies in order, with gaps at either side."""
    upstream, downstream, found = FIRST_UPSTREAM, FIRST_DOWNSTREAM, []
    for _ in range(draw(st.integers(1, 60))):
        found.append(Copy(upstream, downstream))
        upstream += 1 + draw(st.sampled_from((0, 0, 0, 1, 4)))
        downstream += 1 + draw(st.sampled_from((0, 0, 0, 1, 3)))
    return found


def built(found: Sequence[Copy], sizes: Sequence[int], limit: int = 512) -> OffsetRuns:
    """Return the runs after polls of these sizes."""
    runs, begin = OffsetRuns(limit=limit), 0
    for size in [*sizes, len(found)]:
        poll = found[begin : begin + size]
        begin += len(poll)
        stretches: list[tuple[int, int]] = []
        for one in poll:
            if stretches and one.downstream == sum(stretches[-1]):
                stretches[-1] = (stretches[-1][0], stretches[-1][1] + 1)
            else:
                stretches.append((one.downstream, 1))
        for run in runs_of([one.upstream for one in poll], stretches):
            runs.append(run)
    return runs


def next_copy(found: Sequence[Copy], offset: int) -> int:
    """Return the index of the first copy that a group at this offset has yet to read."""
    return bisect_left(found, (offset, -1))


def unread(found: Sequence[Copy], offset: int) -> list[Copy]:
    """Return the copies that a group at this offset of the target will read."""
    return [one for one in found if one.downstream >= offset]


polls = st.lists(st.integers(1, 7), max_size=20)


@given(copies(), polls)
def test_a_translated_group_reads_exactly_the_copies_of_the_records_it_had_to_read(
    found: list[Copy], sizes: list[int]
) -> None:
    runs = built(found, sizes)
    for offset in range(found[-1].upstream + 4):
        moved = runs.translate(offset)
        assert moved is not None
        assert unread(found, moved) == found[next_copy(found, offset) :]
        assert moved <= found[-1].downstream + 1


@given(copies(), polls, st.integers(4, 8))
def test_thinned_runs_translate_too_early_at_most_and_exactly_at_the_end(
    found: list[Copy], sizes: list[int], limit: int
) -> None:
    runs = built(found, sizes, limit)
    assert len(runs) <= limit
    translated = [runs.translate(offset) or 0 for offset in range(found[-1].upstream + 4)]
    assert translated == sorted(translated)
    for offset, moved in enumerate(translated):
        due = found[next_copy(found, offset) :]
        assert unread(found, moved)[len(unread(found, moved)) - len(due) :] == due
    assert unread(found, translated[found[-1].upstream]) == found[-1:]


@given(copies(), polls)
def test_runs_ascend_and_are_merged(found: list[Copy], sizes: list[int]) -> None:
    runs = built(found, sizes)
    listed = runs.sample(len(runs))
    for earlier, later in pairwise(listed):
        assert earlier.upstream + earlier.size <= later.upstream
        assert earlier.downstream + earlier.size <= later.downstream
        assert (earlier.upstream + earlier.size, earlier.downstream + earlier.size) != later[:2]
    assert OffsetRuns(listed).sample(len(runs)) == listed
    assert built(found, []).sample(len(runs)) == listed  # by any polls the same


@given(copies(), polls, st.integers(0, 59), st.integers(1, 5))
def test_records_that_were_copied_again_translate_to_their_last_copy(
    found: list[Copy], sizes: list[int], again: int, gap: int
) -> None:
    runs = built(found, sizes)
    repeated = found[min(again, len(found) - 1) :]
    shift = found[-1].downstream + gap - repeated[0].downstream
    for one in repeated:
        runs.append(OffsetRun(one.upstream, one.downstream + shift, 1))
    for one in repeated:
        assert runs.translate(one.upstream) == one.downstream + shift
    for one in found[: len(found) - len(repeated)]:
        assert runs.translate(one.upstream) == one.downstream


def test_a_stretch_without_an_offset_is_in_no_run() -> None:
    assert runs_of([1, 2, 3, 9], [(-1, 2), (50, 2)]) == [OffsetRun(3, 50, 1), OffsetRun(9, 51, 1)]
    assert OffsetRuns().translate(7) is None
