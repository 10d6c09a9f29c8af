"""Many groups on one coordinator: each comes to rest, and none is looked at without a reason."""

from typing import Any

import pytest

from quorumlog.broker.groups.core.consumer import events
from quorumlog.broker.groups.core.consumer.group import ConsumerGroup
from quorumlog.broker.groups.core.consumer.states import ConsumerGroupState
from tests.support.groups.consumer.coordination import ConsumerCoordination, heartbeat, join

GROUPS, MEMBERS = 200, 5


def test_many_groups_come_to_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = ConsumerCoordination()
    names = [f"g{number}" for number in range(GROUPS)]
    for name in names:
        for number in range(MEMBERS):
            groups.ask(join(f"m{number}", group_id=name))
    groups.commit_writes()
    for _ in range(3):
        for name in names:
            for member_id, member in [*groups.consumer.groups[name].members.items()]:
                current = member.current
                groups.ask(
                    heartbeat(
                        member_id, current.member_epoch, group_id=name, owned=current.assigned
                    )
                )
        groups.commit_writes()
    states = [groups.consumer.groups[name].state for name in names]
    assert states == [ConsumerGroupState.STABLE] * GROUPS
    loaded = groups.reloaded().consumer.groups
    assert [loaded[name].owners for name in names] == [
        groups.consumer.groups[name].owners for name in names
    ]
    looked_at: list[str] = []

    def all_names(self: ConsumerGroup) -> frozenset[str]:
        looked_at.append(self.group_id)
        return frozenset({"t"})

    monkeypatch.setattr(ConsumerGroup, "all_names", all_names)
    groups.step(events.TopicsChanged(names={"unrelated"}))
    beats: list[Any] = [
        groups.ask(heartbeat("m0", groups.consumer.groups[name].group_epoch, group_id=name))
        for name in names
    ]
    assert all(request_id in groups.replies for request_id in beats)
    assert (looked_at, groups.writes) == ([], [])
