"""Who comes back with less than it had is no more eligible; who was only killed is."""

from dataclasses import replace

import pytest

from quorumlog.metadata_quorum.controller.log_loss import LogLoss, losses_since, remark_on
from quorumlog.metadata_quorum.controller_client import BrokerRegistration
from quorumlog.metadata_quorum.image import BrokerImage
from quorumlog.metadata_quorum.image.features import LEVEL_OF_LAST_KNOWN_ELR, METADATA_FEATURE
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId
from tests.support.metadata_quorum.controllers import Bench, topic

BEFORE = BrokerImage(
    broker_id=BrokerId(3),
    broker_epoch=5,
    incarnation_id="a",
    host="h",
    port=1,
    control_address="h:2",
    directory_id="d",
    boot_id="b",
)
AFTER = BrokerRegistration(
    broker_id=BrokerId(3),
    incarnation_id="b",
    host="h",
    port=1,
    control_address="h:2",
    directory_id="d",
    boot_id="b",
)


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
        bench.register(broker_id, boot="b")
        bench.heartbeat(broker_id)
    bench.create(topic("t", 1, 2, 3, min_insync_replicas="2"))
    for broker_id in (1, 2, 3):
        bench.die(broker_id)
    assert (bench.partition().isr, bench.partition().elr) == ((), (2, 3))
    return bench


def come_back(bench: Bench, broker_id: int, **seen: str) -> str | None:
    """Register another process, let it in, and return what the operator is told."""
    remark = bench.register_with_remark(broker_id, f"after {len(bench.log)}", **seen)
    bench.heartbeat(broker_id)
    return remark


def test_a_killed_broker_leads_again() -> None:
    bench = eligible_2_and_3()
    assert come_back(bench, 3, boot="b") is None
    assert (bench.partition().leader_id, bench.partition().isr) == (3, (3,))


def test_a_wiped_broker_leaves_the_elr_in_the_commit_of_its_registration() -> None:
    bench = eligible_2_and_3()
    written = len(bench.log)
    remark = bench.register_with_remark(3, "b", boot="b", directory="new")
    assert [type(record).__name__ for record in bench.log[written:]] == [
        "PartitionChange",
        "RegisterBroker",
    ]
    bench.heartbeat(3)
    assert (bench.partition().leader_id, bench.partition().elr) == (NO_LEADER, (2,))
    assert remark == (
        "broker 3 may lack acknowledged records: the log directory has another directory.id than "
        "before. "
        "It is out of every ISR and ELR until it has caught up"
    )
    assert come_back(bench, 3, boot="b", directory="new") is None  # killed, with that directory
    assert bench.partition().leader_id == NO_LEADER
    come_back(bench, 2, boot="b")
    assert (bench.partition().leader_id, bench.partition().isr) == (2, (2,))


def test_a_wiped_broker_leaves_an_isr_that_is_too_small_for_good() -> None:
    bench = eligible_2_and_3()
    come_back(bench, 3, boot="b")
    bench.die(3)
    come_back(bench, 3, boot="b", directory="new")
    assert (bench.partition().isr, bench.partition().elr) == ((), (2,))


def test_an_empty_directory_does_not_push_out_a_broker_that_lives() -> None:
    """A copy of its configuration, started elsewhere by mistake: even the address is the same."""
    bench = eligible_2_and_3()
    come_back(bench, 3, boot="b")
    impostor = bench.register(3, "copy", directory="new")
    assert impostor.error_code.name == "DUPLICATE_BROKER_REGISTRATION"
    assert bench.partition().leader_id == 3
    bench.now_ms += bench.settings.broker_session_timeout_ms
    assert bench.register(3, "copy", directory="new").error_code.name == "NONE"
    assert (bench.partition().isr, bench.partition().elr) == ((), (2,))


def test_where_the_last_disk_was_wiped_nobody_leads_and_it_is_said() -> None:
    bench = eligible_2_and_3()
    come_back(bench, 2, boot="b", directory="new too")
    epoch = bench.partition().partition_epoch
    remark = come_back(bench, 3, boot="b", directory="new")
    assert "No other broker held all of t-0: THEY HAVE NO LEADER FROM NOW ON" in (remark or "")
    partition = bench.partition()
    assert (partition.leader_id, partition.isr, partition.elr) == (NO_LEADER, (), ())
    assert partition.partition_epoch == epoch + 1
    come_back(bench, 1, boot="b")
    assert bench.partition().leader_id == NO_LEADER


def test_a_restarted_machine_leads_only_where_nobody_is_known_to_have_more() -> None:
    bench = eligible_2_and_3()
    come_back(bench, 2, boot="c")
    assert (bench.partition().leader_id, bench.partition().elr) == (NO_LEADER, (3,))
    remark = come_back(bench, 3, boot="c")
    assert "No other broker held all of t-0: the logs that are left" in (remark or "")
    assert (bench.partition().leader_id, bench.partition().last_known_elr) == (NO_LEADER, (2, 3))
    bench.report(3, 90)
    assert bench.partition().leader_id == NO_LEADER
    bench.report(2, 100)
    assert (bench.partition().leader_id, bench.partition().isr) == (2, (2,))


def test_the_remark_on_very_many_partitions_is_short() -> None:
    remark = remark_on(BEFORE, LogLoss.EVERYTHING, [f"t-{index}" for index in range(25)])
    assert "t-8, t-9 and 15 more: THEY" in (remark or "")


def test_a_directory_of_another_broker_is_refused() -> None:
    bench = Bench()
    bench.start(1)
    written = len(bench.log)
    refused = bench.register(2, directory="d1")
    assert (refused.error_code.name, len(bench.log)) == ("INVALID_REQUEST", written)
    assert "broker 1" in (refused.error_message or "")


def test_a_broker_whose_last_directory_has_failed_is_not_eligible() -> None:
    """Its process may go on, and be killed later: what the disk has dropped is gone."""
    bench = Bench()
    bench.start(1, 2, 3)
    bench.create(topic("t", 1, 2, 3, min_insync_replicas="2"))
    bench.die(3)
    bench.heartbeat(2, want_fence=1, has_failed=1)
    partition = bench.partition()
    assert (partition.isr, partition.elr, partition.last_known_elr) == ((1,), (), (2,))
    written = len(bench.log)
    bench.heartbeat(2, want_fence=1, has_failed=1)
    assert len(bench.log) == written


def test_a_fenced_broker_whose_last_directory_fails_leaves_the_elr() -> None:
    bench = eligible_2_and_3()
    bench.register(3, "after", boot="b")
    bench.heartbeat(3, want_fence=1)
    bench.heartbeat(3, want_fence=1, has_failed=1)
    assert (bench.partition().elr, bench.partition().last_known_elr) == ((2,), (3,))


def test_a_member_that_reports_a_damaged_log_leaves_its_partition_alone() -> None:
    bench = Bench()
    bench.start(1, 2)
    for name in "tu":
        bench.create(topic(name, 1, 2, min_insync_replicas="2"))
    assert bench.report(1, 80, whole=False) is ErrorCode.NONE
    assert (bench.partition("t").leader_id, bench.partition("t").isr) == (2, (2,))
    assert (bench.partition("t").elr, bench.partition("u").leader_id) == ((), 1)


def test_reports_of_an_earlier_process_do_not_count() -> None:
    bench = eligible_2_and_3()
    come_back(bench, 2, boot="c")
    come_back(bench, 3, boot="c")
    bench.report(2, 500)
    come_back(bench, 2, boot="d")
    bench.report(3, 100)
    assert bench.partition().leader_id == NO_LEADER
    bench.report(2, 90)
    assert bench.partition().leader_id == 3


def test_a_new_controller_waits_for_new_reports() -> None:
    bench = eligible_2_and_3()
    come_back(bench, 2, boot="c")
    come_back(bench, 3, boot="c")
    bench.report(2, 100)
    bench.controller = bench.take_over()
    bench.report(3, 90)
    assert bench.partition().leader_id == NO_LEADER
    bench.report(2, 100)
    assert bench.partition().leader_id == 2


def test_beside_an_older_release_the_last_member_stays_eligible() -> None:
    """No record could say that it was: the older release would not read it."""
    bench = Bench(features={METADATA_FEATURE: (1, LEVEL_OF_LAST_KNOWN_ELR - 1)})
    bench.start(1, 2)
    bench.create(topic("t", 1, 2, min_insync_replicas="2"))
    bench.die(1)
    bench.die(2)
    come_back(bench, 1, boot="c")
    assert (bench.partition().elr, bench.partition().leader_id) == ((2,), NO_LEADER)
    come_back(bench, 2, boot="c")
    assert (bench.partition().leader_id, bench.partition().last_known_elr) == (2, ())
    bench.report(2, 80, whole=False)  # it leads with the records that are left, and says so
    assert (bench.partition().leader_id, bench.partition().is_recovering) == (2, True)
