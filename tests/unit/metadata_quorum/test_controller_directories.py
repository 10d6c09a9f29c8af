"""Log directories of brokers: what fails, or comes back as another one, leads nothing."""

from dataclasses import replace

import pytest

from quorumlog.metadata_quorum.controller.brokers import UNASSIGNED
from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.controller.log_loss import LogLoss, losses_since, remark_on
from quorumlog.metadata_quorum.controller.log_reports import ControllerRules
from quorumlog.metadata_quorum.controller.slices import Slices
from quorumlog.metadata_quorum.image import LOST
from quorumlog.metadata_quorum.image.features import (
    ANNOUNCED,
    LEVEL_OF_LAST_KNOWN_ELR,
    METADATA_FEATURE,
    NEWEST_LEVEL,
)
from quorumlog.metadata_quorum.image.records import PartitionChange, RegisterBroker
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, Offset
from tests.support.metadata_quorum.brokers import broker_image, broker_registration
from tests.support.metadata_quorum.controllers import Bench, ids, image_of, topic

ONE, TWO = BrokerId(1), BrokerId(2)
DIRS = ("1a", "1b")


BEFORE_LAST_KNOWN_ELR = LEVEL_OF_LAST_KNOWN_ELR - 1


def bench_with(
    *replicas: int, min_isr: str = "1", assigned: str | None = "1b", level: int = NEWEST_LEVEL
) -> Bench:
    """Broker 1 has two directories; partition t-0 is on `replicas`, and 1 leads it."""
    bench = Bench(features={METADATA_FEATURE: (1, level)})
    bench.let_in(1, directory="1a", log_dirs=DIRS)
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
    broker = bench.broker(ONE)
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
    bench.let_in(1, directory="1a")
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
    image = image_of(bench.controller.cluster)
    assert image.topics["t"].partitions[0].directories == ((ONE, "1b"),)
    same = replace(bench.restored(), epoch=image.epoch, controller_id=image.controller_id)
    assert same == image


REFUSED = ("3a", UNASSIGNED, LOST)


@pytest.mark.parametrize(
    ("log_dirs", "message"),
    [
        (("3a", "1b"), "Log directory 1b belongs to broker 1"),
        *((("3a", one), "names a reserved log directory, or one twice") for one in REFUSED),
    ],
)
def test_directories_that_cannot_be_its_own_are_refused(
    log_dirs: tuple[str, ...], message: str
) -> None:
    reply = bench_with(1, 2).register(3, "again", directory="3a", log_dirs=log_dirs)
    assert reply.error_code is ErrorCode.INVALID_REQUEST
    assert message in (reply.error_message or "")


def test_several_directories_wait_for_brokers_that_know_them() -> None:
    bench = Bench(features={})
    bench.register(2)
    bench.features = ANNOUNCED
    reply = bench.register(1, "a", directory="1a", log_dirs=DIRS)
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
    bench.let_in(1, directory="1a", log_dirs=DIRS)
    bench.start(2)
    for number in range(7):
        bench.create(topic(f"t{number}", 1, 2))
        bench.assign(1, DIRS[number % 2], topic=f"t{number}")
    request = bench.heartbeat_request(1, offline=("1a",))
    decision = bench.controller.decide(request, now_ms=bench.now_ms, base_offset=Offset(999))
    assert (len(decision.records), decision.goes_on) == (2, True)
    assert bench.broker(ONE).log_dirs == DIRS
    bench.ask(request)
    leaders = [bench.partition(f"t{number}").leader_id for number in range(7)]
    assert leaders == [TWO, ONE, TWO, ONE, TWO, ONE, TWO]
    assert bench.broker(ONE).log_dirs == ("1b",)


# --- who comes back with less is no more eligible; who was only killed is ---


BEFORE = broker_image(3, directory_id="d", boot_id="b")
AFTER = broker_registration(3, incarnation_id="b", boot_id="b")


@pytest.mark.parametrize(
    ("before", "after", "loss"),
    [
        ({}, {}, LogLoss.NOTHING),  # killed: the system has what the process had written
        ({}, {"directory_id": "e"}, LogLoss.EVERYTHING),
        ({}, {"directory_id": "e", "previous_broker_epoch": 5}, LogLoss.EVERYTHING),
        ({"directory_id": None}, {}, LogLoss.NOTHING),
        ({}, {"boot_id": "c"}, LogLoss.UNFLUSHED),
        ({}, {"boot_id": "c", "previous_broker_epoch": 5}, LogLoss.NOTHING),
        ({}, {"boot_id": "c", "previous_broker_epoch": 4}, LogLoss.UNFLUSHED),
        ({}, {"boot_id": None}, LogLoss.UNFLUSHED),  # each start may be that of the machine
        ({"boot_id": None}, {"boot_id": None}, LogLoss.UNFLUSHED),
        ({"boot_id": None}, {"boot_id": None, "previous_broker_epoch": 5}, LogLoss.NOTHING),
        ({}, {"incarnations": {"d": ("a", "b")}}, LogLoss.NOTHING),
        ({}, {"incarnations": {"d": ("x", "z")}}, LogLoss.NEWER),
        ({}, {"incarnations": {"d": ()}}, LogLoss.UNKNOWN),
        ({}, {"incarnations": {"d": ()}, "previous_broker_epoch": 5}, LogLoss.NOTHING),
    ],
)
def test_a_registration_shows_what_may_have_been_lost(
    before: dict[str, str], after: dict[str, str], loss: LogLoss
) -> None:
    losses = losses_since(replace(BEFORE, **before), replace(AFTER, **after))  # type: ignore[arg-type]
    assert losses.worst is loss


def test_who_was_never_registered_holds_nothing() -> None:
    assert losses_since(None, AFTER).worst is LogLoss.EVERYTHING


def eligible_2_and_3() -> Bench:
    """The ISR is empty, its last members wait; 1 is alive and lacks records."""
    bench = Bench()
    for broker_id in (1, 2, 3):
        bench.let_in(broker_id, boot="b")
    bench.create(topic("t", 1, 2, 3, min_insync_replicas="2"))
    for broker_id in (1, 2, 3):
        bench.die(broker_id)
    assert (bench.partition().isr, bench.partition().elr) == ((), (2, 3))
    return bench


def register_again(bench: Bench, broker_id: int, **seen: str) -> str | None:
    """Register another process, let it in, and return what the operator is told."""
    remark = bench.register_with_remark(broker_id, f"after {len(bench.log)}", **seen)
    bench.heartbeat(broker_id)
    return remark


def both_machines_restarted() -> Bench:
    """Brokers 2 and 3 may lack records: they lead once their logs are reported."""
    bench = eligible_2_and_3()
    register_again(bench, 2, boot="c")
    register_again(bench, 3, boot="c")
    return bench


def test_a_killed_broker_leads_again() -> None:
    bench = eligible_2_and_3()
    assert register_again(bench, 3, boot="b") is None
    assert (bench.partition().leader_id, bench.partition().isr) == (3, (3,))


def test_a_wiped_broker_leaves_the_elr_in_the_commit_of_its_registration() -> None:
    bench = eligible_2_and_3()
    written = len(bench.log)
    remark = bench.register_with_remark(3, "b", boot="b", directory="new")
    assert [*map(type, bench.log[written:])] == [PartitionChange, RegisterBroker]
    bench.heartbeat(3)
    assert (bench.partition().leader_id, bench.partition().elr) == (NO_LEADER, (2,))
    assert remark == (
        "broker 3 may lack acknowledged records: the log directory has another directory.id than "
        "before. "
        "It is out of every ISR and ELR until it has caught up"
    )
    assert (
        register_again(bench, 3, boot="b", directory="new") is None
    )  # killed, with that directory
    assert bench.partition().leader_id == NO_LEADER
    register_again(bench, 2, boot="b")
    assert (bench.partition().leader_id, bench.partition().isr) == (2, (2,))


def test_an_empty_directory_does_not_push_out_a_broker_that_lives() -> None:
    """A copy of its configuration, started elsewhere by mistake: even the address is the same."""
    bench = eligible_2_and_3()
    register_again(bench, 3, boot="b")
    impostor = bench.register(3, "copy", directory="new")
    assert impostor.error_code.name == "DUPLICATE_BROKER_REGISTRATION"
    assert bench.partition().leader_id == 3
    bench.now_ms += bench.settings.broker_session_timeout_ms
    assert bench.register(3, "copy", directory="new").error_code.name == "NONE"
    # A wiped broker leaves an ISR that is too small for good.
    assert (bench.partition().isr, bench.partition().elr) == ((), (2,))


def test_where_the_last_disk_was_wiped_nobody_leads_and_it_is_said() -> None:
    bench = eligible_2_and_3()
    register_again(bench, 2, boot="b", directory="new too")
    epoch = bench.partition().partition_epoch
    remark = register_again(bench, 3, boot="b", directory="new")
    assert "No other broker held all of t-0: THEY HAVE NO LEADER FROM NOW ON" in (remark or "")
    partition = bench.partition()
    assert (partition.leader_id, partition.isr, partition.elr) == (NO_LEADER, (), ())
    assert partition.partition_epoch == epoch + 1
    register_again(bench, 1, boot="b")
    assert bench.partition().leader_id == NO_LEADER


def test_a_restarted_machine_leads_only_where_nobody_is_known_to_have_more() -> None:
    bench = eligible_2_and_3()
    register_again(bench, 2, boot="c")
    assert (bench.partition().leader_id, bench.partition().elr) == (NO_LEADER, (3,))
    remark = register_again(bench, 3, boot="c")
    assert "No other broker held all of t-0: the logs that are left" in (remark or "")
    assert (bench.partition().leader_id, bench.partition().last_known_elr) == (NO_LEADER, (2, 3))
    bench.report(3, 90)
    assert bench.partition().leader_id == NO_LEADER
    bench.report(2, 100)
    assert (bench.partition().leader_id, bench.partition().isr) == (2, (2,))


def test_the_remark_on_very_many_partitions_is_short() -> None:
    remark = remark_on(BEFORE, LogLoss.EVERYTHING, [f"t-{index}" for index in range(25)])
    assert "t-8, t-9 and 15 more: THEY" in (remark or "")


def test_a_remark_counts_the_directories_of_a_broker_that_names_them() -> None:
    naming = replace(BEFORE, log_dirs=("d", "e"))
    for loss in (LogLoss.UNKNOWN, LogLoss.NEWER, LogLoss.EVERYTHING):
        assert "records: the log directory " in (remark_on(BEFORE, loss, ()) or "")
        assert "records: one of its log directories " in (remark_on(naming, loss, ()) or "")


def test_a_directory_of_another_broker_is_refused() -> None:
    bench = Bench().start(1)
    written = len(bench.log)
    refused = bench.register(2, directory="d1")
    assert (refused.error_code.name, len(bench.log)) == ("INVALID_REQUEST", written)
    assert "broker 1" in (refused.error_message or "")


def test_a_broker_whose_last_directory_has_failed_is_not_eligible() -> None:
    """Its process may go on, and be killed later: what the disk has dropped is gone."""
    bench = Bench().start(1, 2, 3)
    bench.create(topic("t", 1, 2, 3, min_insync_replicas="2"))
    bench.die(3)
    bench.heartbeat(2, want_fence=1, has_failed=1)
    partition = bench.partition()
    assert (partition.isr, partition.elr, partition.last_known_elr) == ((1,), (), (2,))
    with bench.unwritten():
        bench.heartbeat(2, want_fence=1, has_failed=1)


def test_a_fenced_broker_whose_last_directory_fails_leaves_the_elr() -> None:
    bench = eligible_2_and_3()
    bench.register(3, "after", boot="b")
    bench.heartbeat(3, want_fence=1)
    bench.heartbeat(3, want_fence=1, has_failed=1)
    assert (bench.partition().elr, bench.partition().last_known_elr) == ((2,), (3,))


def test_a_member_that_reports_a_damaged_log_leaves_its_partition_alone() -> None:
    bench = Bench().start(1, 2)
    for name in "tu":
        bench.create(topic(name, 1, 2, min_insync_replicas="2"))
    assert bench.report(1, 80, whole=False) is ErrorCode.NONE
    assert (bench.partition("t").leader_id, bench.partition("t").isr) == (2, (2,))
    assert (bench.partition("t").elr, bench.partition("u").leader_id) == ((), 1)


def test_a_member_that_reports_a_whole_log_stays_a_member() -> None:
    bench = Bench().start(1, 2)
    bench.create(topic("t", 1, 2))
    with bench.unwritten():
        assert bench.report(1, 80) is ErrorCode.NONE
    assert (bench.partition("t").leader_id, bench.partition("t").isr) == (1, (1, 2))


def test_reports_of_an_earlier_process_do_not_count() -> None:
    bench = both_machines_restarted()
    bench.report(2, 500)
    register_again(bench, 2, boot="d")
    bench.report(3, 100)
    assert bench.partition().leader_id == NO_LEADER
    bench.report(2, 90)
    assert bench.partition().leader_id == 3


def test_a_new_controller_waits_for_new_reports() -> None:
    bench = both_machines_restarted()
    bench.report(2, 100)
    bench.controller = bench.take_over()
    bench.report(3, 90)
    assert bench.partition().leader_id == NO_LEADER
    bench.report(2, 100)
    assert bench.partition().leader_id == 2


def test_beside_an_older_release_the_last_member_stays_eligible() -> None:
    """No record could say that it was: the older release would not read it."""
    bench = Bench(features={METADATA_FEATURE: (1, LEVEL_OF_LAST_KNOWN_ELR - 1)}).start(1, 2)
    bench.create(topic("t", 1, 2, min_insync_replicas="2"))
    bench.die(1)
    bench.die(2)
    register_again(bench, 1, boot="c")
    assert (bench.partition().elr, bench.partition().leader_id) == ((2,), NO_LEADER)
    register_again(bench, 2, boot="c")
    assert (bench.partition().leader_id, bench.partition().last_known_elr) == (2, ())
    bench.report(2, 80, whole=False)  # it leads with the records that are left, and says so
    assert (bench.partition().leader_id, bench.partition().is_recovering) == (2, True)
