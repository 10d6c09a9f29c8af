"""Brokers with several log directories: what fails, or comes back as another one, leads nothing."""

from dataclasses import replace
from typing import cast

import pytest

from quorumlog.metadata_quorum.controller.brokers import UNASSIGNED
from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.controller.rules import ControllerRules
from quorumlog.metadata_quorum.controller.slices import Slices
from quorumlog.metadata_quorum.controller_client import RegistrationReply
from quorumlog.metadata_quorum.image import LOST
from quorumlog.metadata_quorum.image.features import (
    ANNOUNCED,
    LEVEL_OF_LAST_KNOWN_ELR,
    METADATA_FEATURE,
    NEWEST_LEVEL,
)
from quorumlog.metadata_quorum.image.snapshot_records import image_of, records_of
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, Offset
from tests.support.metadata_quorum.controllers import Bench, ids, topic
from tests.support.metadata_quorum.controllers import image_of as frozen

ONE, TWO = BrokerId(1), BrokerId(2)
DIRS = ("1a", "1b")


BEFORE_LAST_KNOWN_ELR = LEVEL_OF_LAST_KNOWN_ELR - 1


def bench_with(
    *replicas: int, min_isr: str = "1", assigned: str | None = "1b", level: int = NEWEST_LEVEL
) -> Bench:
    """Broker 1 has two directories; partition t-0 is on `replicas`, and 1 leads it."""
    bench = Bench(features={METADATA_FEATURE: (1, level)})
    bench.register(1, directory="1a", log_dirs=DIRS)
    bench.heartbeat(1)
    bench.start(2, 3)
    bench.create(topic("t", *replicas, min_insync_replicas=min_isr))
    if assigned is not None:
        bench.assign(1, assigned)
    return bench


def come_back(bench: Bench, *log_dirs: str, offline: bool = False) -> str | None:
    """Broker 1 was killed, and is started again."""
    bench.die(1)
    remark = bench.register_with_remark(
        1, f"at {bench.now_ms}", directory=log_dirs[0], log_dirs=log_dirs, has_offline_dirs=offline
    )
    bench.heartbeat(1)
    assert bench.controller.check_invariants() == []
    return remark


def test_a_directory_that_fails_takes_only_its_replicas_out() -> None:
    bench = bench_with(1, 2, 3)
    bench.create(topic("other", 1, 2, 3))
    bench.assign(1, "1a", topic="other")
    bench.heartbeat(1, offline=("1b",))
    assert (bench.partition().leader_id, bench.partition().isr) == (TWO, ids(2, 3))
    assert (bench.partition("other").leader_id, bench.partition("other").isr) == (ONE, ids(1, 2, 3))
    broker = bench.controller.cluster.brokers[ONE]
    assert (broker.log_dirs, broker.fenced) == (("1a",), False)
    assert bench.controller.check_invariants() == []
    epoch = bench.partition().leader_epoch
    bench.heartbeat(1, offline=("1b",))  # the next one says it again
    assert bench.partition().leader_epoch == epoch


def test_a_replica_in_a_failed_directory_is_not_taken_back() -> None:
    bench = bench_with(1, 2, 3)
    bench.heartbeat(1, offline=("1b",))
    bench.join_isr(1, answers=ErrorCode.INELIGIBLE_REPLICA)
    bench.assign(1, "1a")  # it was made anew, elsewhere
    bench.join_isr(1)
    assert bench.partition().isr == ids(1, 2, 3)


def test_a_failed_directory_leaves_the_elr_unless_it_is_the_last() -> None:
    """What was not flushed may be gone."""
    bench = bench_with(1, 2, min_isr="2")
    bench.die(2)
    assert (bench.partition().isr, bench.partition().elr) == (ids(1), ids(2))
    bench.heartbeat(1, offline=("1b",))
    assert (bench.partition().isr, bench.partition().elr) == ((), ids(2))
    alone = bench_with(1, level=BEFORE_LAST_KNOWN_ELR)
    alone.heartbeat(1, offline=("1b",))
    assert (alone.partition().leader_id, alone.partition().elr) == (NO_LEADER, ids(1))


def test_the_last_replica_in_a_failed_directory_is_the_last_known_elr() -> None:
    bench = bench_with(1)
    bench.heartbeat(1, offline=("1b",))
    partition = bench.partition()
    assert (partition.leader_id, partition.elr) == (NO_LEADER, ())
    assert partition.last_known_elr == ids(1)
    come_back(bench, "1a", "1b")
    assert bench.partition().leader_id == NO_LEADER
    bench.report(1, 80)
    assert bench.partition().leader_id == ONE


def test_what_is_in_no_known_directory_leaves_with_one_that_fails() -> None:
    """It may have been in that one, which the next registration does not name."""
    bench = bench_with(1, 2, 3, assigned=None)
    bench.heartbeat(1, offline=("1b",))
    assert (bench.partition().leader_id, bench.partition().isr) == (TWO, ids(2, 3))
    come_back(bench, "1a", "1c")
    assert (bench.partition().leader_id, bench.partition().isr) == (TWO, ids(2, 3))


def test_the_last_replica_leads_again_when_it_is_known_to_be_elsewhere() -> None:
    bench = bench_with(1, assigned=None, level=BEFORE_LAST_KNOWN_ELR)
    bench.heartbeat(1, offline=("1b",))
    bench.assign(1, "1a")
    assert bench.partition().leader_id == ONE


def test_the_last_replica_leads_again_when_its_directory_is_back() -> None:
    bench = bench_with(1, level=BEFORE_LAST_KNOWN_ELR)
    bench.heartbeat(1, offline=("1b",))
    come_back(bench, "1a", offline=True)
    assert (bench.partition().leader_id, bench.partition().elr) == (NO_LEADER, ids(1))
    come_back(bench, "1a", "1b")
    assert bench.partition().leader_id == ONE


def test_a_replaced_directory_leads_nothing_that_was_in_it() -> None:
    bench = bench_with(1)
    bench.create(topic("other", 1))
    bench.assign(1, "1a", topic="other")
    remark = come_back(bench, "1a", "1c")
    assert remark is not None
    assert "t-0: THEY HAVE NO LEADER" in remark
    assert "other-0" not in remark
    lost = bench.partition()
    assert (lost.leader_id, lost.isr, lost.elr) == (NO_LEADER, (), ())
    bench.assign(1, "1c")  # empty
    assert bench.partition().leader_id == NO_LEADER
    assert bench.partition("other").leader_id == ONE


def test_a_replaced_directory_counts_however_long_ago_it_was_used() -> None:
    bench = bench_with(1)
    come_back(bench, "1a", offline=True)
    come_back(bench, "1a", "1c")
    assert (bench.partition().leader_id, bench.partition().elr) == (NO_LEADER, ())


@pytest.mark.parametrize(("log_dirs", "leader"), [(DIRS, ONE), (("1a", "1c"), NO_LEADER)])
def test_an_unassigned_replica_may_be_in_the_directory_that_is_gone(
    log_dirs: tuple[str, ...], leader: BrokerId
) -> None:
    bench = bench_with(1, assigned=None)
    come_back(bench, *log_dirs)
    assert bench.partition().leader_id == leader


def test_a_directory_is_added_without_a_loss() -> None:
    bench = Bench()
    bench.register(1, directory="1a")
    bench.heartbeat(1)
    bench.create(topic("t", 1))
    come_back(bench, "1a", "1b")
    assert bench.partition().leader_id == ONE


def test_a_replica_is_reported_whose_directory_has_failed_already() -> None:
    bench = bench_with(1, 2, 3, assigned=None)
    bench.heartbeat(1, offline=("1b",))
    assert bench.partition().isr == ids(2, 3)  # it may have been there
    bench.assign(1, "1b")
    bench.join_isr(1, answers=ErrorCode.INELIGIBLE_REPLICA)
    assert (bench.partition().leader_id, bench.partition().isr) == (TWO, ids(2, 3))
    assert bench.controller.check_invariants() == []


def test_a_replica_that_was_taken_away_has_no_directory_when_it_is_back() -> None:
    bench = bench_with(1, 2)
    bench.reassign(("t", 0, (2,)))
    assert bench.partition().directories == ()


def test_the_directories_survive_a_snapshot() -> None:
    bench = bench_with(1, 2, 3)
    bench.heartbeat(1, offline=("1b",))
    image = frozen(bench.replay())
    assert image.topics["t"].partitions[0].directories == ((ONE, "1b"),)
    rebuilt = image_of(records_of(image), image.end_offset)
    same = {"epoch": image.epoch, "controller_id": image.controller_id}
    assert replace(rebuilt, **same) == image  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("log_dirs", "message"),
    [
        (("3a", "1b"), "Log directory 1b belongs to broker 1"),
        (("3a", "3a"), "names a reserved log directory, or one twice"),
        (("3a", UNASSIGNED), "names a reserved log directory, or one twice"),
        (("3a", LOST), "names a reserved log directory, or one twice"),
    ],
)
def test_directories_that_cannot_be_its_own_are_refused(
    log_dirs: tuple[str, ...], message: str
) -> None:
    bench = bench_with(1, 2)
    request = bench.registration(3, "again", directory="3a", log_dirs=log_dirs)
    reply = cast("RegistrationReply", bench.ask(request))
    assert reply.error_code is ErrorCode.INVALID_REQUEST
    assert message in (reply.error_message or "")


def test_several_directories_wait_for_brokers_that_know_them() -> None:
    bench = Bench(features={})
    bench.register(2)
    bench.features = ANNOUNCED
    request = bench.registration(1, "a", directory="1a", log_dirs=DIRS)
    reply = cast("RegistrationReply", bench.ask(request))
    assert reply.error_code is ErrorCode.UNSUPPORTED_VERSION
    assert reply.error_message == (
        "Broker 1 has several log.dirs (until it can use them, start it with the one that it had). "
        "It needs level 3 of quorumlog.metadata.version. Broker 2 does not support this level."
    )
    assert bench.controller.cluster.features == {}


class Two(Slices):
    at_once = 2


class InSlices(Controller):
    rules = ControllerRules(slices=Two)


def test_a_failed_directory_of_many_replicas_is_left_slice_by_slice() -> None:
    bench = Bench(controller_class=InSlices)
    bench.register(1, directory="1a", log_dirs=DIRS)
    bench.heartbeat(1)
    bench.start(2)
    for number in range(7):
        bench.create(topic(f"t{number}", 1, 2))
        bench.assign(1, DIRS[number % 2], topic=f"t{number}")
    request = bench.heartbeat_request(1, offline=("1a",))
    decision = bench.controller.decide(request, now_ms=bench.now_ms, base_offset=Offset(999))
    assert (len(decision.records), decision.goes_on) == (2, True)
    assert bench.controller.cluster.brokers[ONE].log_dirs == DIRS
    bench.ask(request)
    leaders = [bench.partition(f"t{number}").leader_id for number in range(7)]
    assert leaders == [TWO, ONE, TWO, ONE, TWO, ONE, TWO]
    assert bench.controller.cluster.brokers[ONE].log_dirs == ("1b",)
