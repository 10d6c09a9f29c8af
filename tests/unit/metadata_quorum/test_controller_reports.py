"""The controller fences a silent leader that its followers report before its session ends."""

import pytest

from quorumlog.metadata_quorum.controller.brokers import Sessions
from tests.support.metadata_quorum.controllers import Bench, topic


def report(bench: Bench, *followers: int, after_ms: int, leader: int = 1) -> None:
    """Let each follower report after a while that the leader leaves its fetch unanswered."""
    bench.now_ms += after_ms
    for follower in followers:
        bench.heartbeat(follower, unanswering=(leader,))


def test_a_silent_leader_that_followers_report_is_fenced_after_a_third_of_its_session() -> None:
    bench = Bench().start(1, 2, 3)
    bench.create(topic("t", 1, 2, 3))
    report(bench, 2, 3, after_ms=2300)
    assert bench.controller.next_expiry_ms() == 1000 + 9000
    report(bench, 2, 3, after_ms=749)
    assert bench.controller.next_expiry_ms() == 1000 + 9000
    report(bench, 3, after_ms=1)
    assert bench.controller.next_expiry_ms() == bench.now_ms == 1000 + 3050
    assert bench.expire() == 1
    assert (bench.partition("t").leader_id, bench.partition("t").isr) == (2, (2, 3))


def test_reports_alone_fence_no_leader_before_a_third_of_its_session() -> None:
    bench = Bench().start(1, 2)
    report(bench, 2, after_ms=500)
    report(bench, 2, after_ms=800)
    assert bench.controller.next_expiry_ms() == 1000 + 3000
    bench.heartbeat(1)
    bench.heartbeat(2)
    assert bench.controller.next_expiry_ms() == bench.now_ms + 9000


def test_reports_from_before_a_heartbeat_of_the_leader_do_not_count() -> None:
    """All processes were stopped: reports reach the controller before heartbeats of the leader."""
    bench = Bench().start(1, 2, 3)
    report(bench, 2, 3, after_ms=5000)
    bench.heartbeat(1)
    report(bench, 2, 3, after_ms=3100)
    assert bench.expire() is None
    report(bench, 2, 3, after_ms=749)
    assert bench.expire() is None
    report(bench, 2, 3, after_ms=1)
    assert bench.expire() == 1


def test_a_report_that_is_decided_late_counts_from_when_it_arrived() -> None:
    """The leader has sent a heartbeat while the decision of the report waited."""
    bench = Bench().start(1, 2)
    report(bench, 2, after_ms=500)
    bench.now_ms = 2000
    bench.heartbeat(1)
    report(bench, 2, after_ms=-400)
    report(bench, 2, after_ms=5000)
    assert bench.controller.next_expiry_ms() == 2000 + 9000
    report(bench, 2, after_ms=750)
    assert bench.controller.next_expiry_ms() == bench.now_ms


def test_after_a_pause_of_the_controller_a_third_of_the_session_begins_anew() -> None:
    bench = Bench().start(1, 2)
    report(bench, 2, after_ms=2000)
    bench.now_ms += 5000
    bench.controller.renew_all(bench.now_ms)
    report(bench, 2, after_ms=2000)
    report(bench, 2, after_ms=900)
    assert bench.expire() is None
    assert bench.expire(100) == 1


def test_a_new_controller_counts_reports_from_its_own_start() -> None:
    bench = Bench().start(1, 2)
    report(bench, 2, after_ms=2000)
    bench.controller = bench.take_over()
    report(bench, 2, after_ms=1500)
    report(bench, 2, after_ms=1000)
    assert bench.controller.next_expiry_ms() == 3000 + 3000
    assert bench.expire(500) == 1


def test_reports_of_an_unknown_or_a_fenced_leader_are_without_effect() -> None:
    bench = Bench().start(1, 2)
    bench.die(1)
    report(bench, 2, after_ms=4000)
    with bench.unwritten():
        report(bench, 2, after_ms=4000)
        report(bench, 2, after_ms=4000, leader=9)
        assert bench.expire() is None


def silences() -> list[int | None]:
    """Let 4 be silent longest, and 1 be reported; return the fenced brokers in their order."""
    bench = Bench().start(1, 2, 3, 4)
    bench.create(topic("t", 1, 4))
    bench.now_ms += 1000
    bench.heartbeat(1)
    report(bench, 2, 3, after_ms=3000)
    report(bench, 2, 3, after_ms=1000)
    fenced = [bench.expire()]
    report(bench, 2, 3, after_ms=4000)
    return [*fenced, bench.expire(), bench.expire()]


def test_a_reported_leader_leaves_after_a_broker_that_is_silent_for_longer() -> None:
    """A silent machine may have lost its memory: it must not be the last of an ISR."""
    assert silences() == [None, 4, 1]


def test_the_planted_order_of_reports_instead_of_silence_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Sessions, "may_leave_ms", lambda _self, _id, at_ms, _unfenced: at_ms)
    assert silences()[0] == 1
