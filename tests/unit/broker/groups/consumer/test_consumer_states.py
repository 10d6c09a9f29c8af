"""Every pair of states of a consumer group and of its members: which changes are legal."""

from contextlib import nullcontext
from itertools import product

import pytest

from quorumlog.broker.groups.core.consumer.states import (
    GROUP_TRANSITIONS,
    MEMBER_TRANSITIONS,
    ConsumerGroupState,
    MemberState,
)

GROUP_LEGAL = {
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
