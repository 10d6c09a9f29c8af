"""The order in which groups are looked at."""

from hypothesis import given
from hypothesis import strategies as st

from quorumlog.broker.coordination.core.deadlines import Deadlines

notes = st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 9))


@given(st.lists(notes), st.integers(0, 10))
def test_groups_come_by_last_deadline(noted: list[tuple[str, int | None]], now_ms: int) -> None:
    deadlines, last = Deadlines[str](), dict[str, int | None]()
    for group_id, deadline_ms in noted:
        deadlines.set(group_id, deadline_ms)
        last[group_id] = deadline_ms
    due = sorted((at, group) for group, at in last.items() if at is not None and at <= now_ms)
    later = [at for at in last.values() if at is not None and at > now_ms]
    assert [deadlines.pop_due(now_ms) for _ in due] == [group for _, group in due]
    assert deadlines.pop_due(now_ms) is None
    assert deadlines.first_ms == min(later, default=None)
