"""A consumer group that has a session timeout and a heartbeat interval of its own."""

import pytest

from quorumlog.broker.groups.core.consumer.settings import ConsumerGroupSettings, GroupTimes
from tests.support.groups.consumer.coordination import ConsumerCoordination, heartbeat, join

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


def test_the_next_heartbeat_has_the_new_interval_and_begins_a_session_of_the_new_length() -> None:
    groups = ConsumerCoordination()
    groups.beat(join("a"))
    groups.topics.configure("g", {SESSION: "50000", HEARTBEAT: "7000"})
    groups.tick(999)
    assert groups.beat(heartbeat("a", 1)).heartbeat_interval_ms == 7000
    groups.tick(49_999)
    assert not groups.writes
    groups.tick(1)
    assert groups.writes


def test_a_session_that_has_begun_keeps_its_length() -> None:
    groups = ConsumerCoordination()
    groups.topics.configure("g", {SESSION: "50000"})
    groups.beat(join("a"))
    groups.topics.configure("g", {})
    groups.tick(49_999)
    assert not groups.writes
    groups.tick(1)
    assert groups.writes


def test_other_groups_go_by_the_broker() -> None:
    own = {"g": {SESSION: "50000", HEARTBEAT: "7000"}}
    times = GroupTimes(ConsumerGroupSettings(), own)
    assert (times.session_timeout_ms("h"), times.heartbeat_interval_ms("h")) == (45_000, 5000)


@pytest.mark.parametrize(
    ("own", "in_force"),
    [
        ({SESSION: "44999"}, (45_000, 5000)),
        ({SESSION: "60001", HEARTBEAT: "15001"}, (60_000, 15_000)),
        ({HEARTBEAT: "4999"}, (45_000, 5000)),
        ({"share.session.timeout.ms": "1"}, (45_000, 5000)),
    ],
)
def test_no_group_leaves_the_bounds_of_its_coordinator(
    own: dict[str, str], in_force: tuple[int, int]
) -> None:
    """The controller, whose bounds may be others, has taken the values."""
    times = GroupTimes(ConsumerGroupSettings(), {"g": own})
    assert (times.session_timeout_ms("g"), times.heartbeat_interval_ms("g")) == in_force
