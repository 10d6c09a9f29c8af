"""Every pair of states of a consumer group and of its members: which changes are legal."""

from contextlib import AbstractContextManager, nullcontext
from itertools import product

import pytest

from quorumlog.broker.groups.core.consumer.group import ConsumerGroup, ConsumerMember
from quorumlog.broker.groups.core.consumer.reconciliation import CurrentAssignment
from quorumlog.broker.groups.core.consumer.records import MemberValue
from quorumlog.broker.groups.core.consumer.states import (
    GROUP_TRANSITIONS,
    MEMBER_TRANSITIONS,
    ConsumerGroupState,
    MemberState,
)
from quorumlog.invariants import InvariantViolation

GROUP_LEGAL = {
    ("EMPTY", "ASSIGNING"),
    ("EMPTY", "RECONCILING"),
    ("EMPTY", "STABLE"),
    ("EMPTY", "DEAD"),
    ("ASSIGNING", "EMPTY"),
    ("ASSIGNING", "RECONCILING"),
    ("ASSIGNING", "STABLE"),
    ("RECONCILING", "EMPTY"),
    ("RECONCILING", "ASSIGNING"),
    ("RECONCILING", "STABLE"),
    ("STABLE", "EMPTY"),
    ("STABLE", "ASSIGNING"),
    ("STABLE", "RECONCILING"),
}
MEMBER_LEGAL = {
    ("STABLE", "UNREVOKED_PARTITIONS"),
    ("STABLE", "UNRELEASED_PARTITIONS"),
    ("UNREVOKED_PARTITIONS", "STABLE"),
    ("UNREVOKED_PARTITIONS", "UNRELEASED_PARTITIONS"),
    ("UNRELEASED_PARTITIONS", "STABLE"),
    ("UNRELEASED_PARTITIONS", "UNREVOKED_PARTITIONS"),
    ("UNKNOWN", "STABLE"),
    ("UNKNOWN", "UNRELEASED_PARTITIONS"),
}


def expected(is_legal: bool) -> AbstractContextManager[object]:
    return nullcontext() if is_legal else pytest.raises(InvariantViolation, match="legal change")


@pytest.mark.parametrize(("source", "target"), list(product(ConsumerGroupState, repeat=2)))
def test_every_pair_of_group_states(source: ConsumerGroupState, target: ConsumerGroupState) -> None:
    group = ConsumerGroup("g")
    group.state = source
    is_legal = (source.name, target.name) in GROUP_LEGAL  # written a second time here, on purpose
    assert (target in GROUP_TRANSITIONS[source]) is is_legal
    with expected(is_legal):
        group.transition(target)
    assert group.state is (target if is_legal else source)


@pytest.mark.parametrize(("source", "target"), list(product(MemberState, repeat=2)))
def test_every_pair_of_member_states(source: MemberState, target: MemberState) -> None:
    """A member may be told something else in the same state: that is no change of it."""
    member = ConsumerMember(
        member_id="a", metadata=MemberValue(), current=CurrentAssignment(state=source)
    )
    is_legal = (source.name, target.name) in MEMBER_LEGAL
    assert (target in MEMBER_TRANSITIONS[source]) is is_legal
    with expected(is_legal or source is target):
        member.become(CurrentAssignment(state=target))
    assert member.current.state is (target if is_legal else source)
