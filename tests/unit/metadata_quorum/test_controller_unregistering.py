"""UnregisterBroker: which brokers the controller forgets, and what is left of them."""

import pytest

from quorumlog.metadata_quorum.cluster_changes import Outcomes, UnregisterBroker
from quorumlog.metadata_quorum.controller.failures import failure_response
from quorumlog.metadata_quorum.controller.partitions import PartitionDecisions
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId
from tests.support.metadata_quorum.controllers import Bench, ids, image_of, topic


@pytest.fixture
def bench() -> Bench:
    return Bench().start(1, 2, 3)


def unregister(bench: Bench, broker_id: int) -> tuple[str, str | None]:
    outcomes = bench.ask(UnregisterBroker(broker_id=BrokerId(broker_id)))
    [outcome] = outcomes.results
    written = outcome.error_code is ErrorCode.NONE
    assert outcomes.end_offset == (len(bench.log) if written else -1)
    return outcome.error_code.name, outcome.error_message


def test_a_dead_broker_is_forgotten_and_is_in_no_elr(bench: Bench) -> None:
    bench.create(topic("t", 3, 1, 2, min_insync_replicas="3"))
    bench.die(3)
    assert bench.partition().elr == (3,)
    assert unregister(bench, 3) == ("NONE", None)
    assert sorted(bench.controller.cluster.brokers) == [1, 2]
    partition = bench.partition()
    assert (partition.replicas, partition.isr, partition.elr) == ((3, 1, 2), (1, 2), ())
    assert image_of(bench.replay()) == image_of(bench.controller.cluster)
    assert unregister(bench, 3) == (
        "BROKER_ID_NOT_REGISTERED",
        "Broker ID 3 is not currently registered",
    )


def test_a_forgotten_broker_may_register_again_as_a_new_one(bench: Bench) -> None:
    bench.create(topic("t", 3, 1))
    bench.die(3)
    unregister(bench, 3)
    assert bench.heartbeat(3, broker_epoch=4).error_code is ErrorCode.BROKER_ID_NOT_REGISTERED
    bench.start(3)
    assert bench.partition().isr == (1,)
    bench.join_isr(3)
    assert bench.partition().isr == (3, 1)
    assert bench.controller.check_invariants() == []


def test_a_broker_in_service_is_not_unregistered(bench: Bench) -> None:
    code, message = unregister(bench, 2)
    assert (code, message) == (
        "INVALID_REQUEST",
        "Broker 2 is in service: stop it before it is unregistered",
    )
    assert 2 in bench.controller.cluster.brokers


def test_a_broker_that_alone_holds_records_is_not_unregistered_before_they_are_given_up(
    bench: Bench,
) -> None:
    for number in range(12):
        bench.create(topic(f"t{number:02}", 3))
    bench.die(3)
    code, message = unregister(bench, 3)
    assert code == "INVALID_REQUEST"
    assert message is not None
    assert "Only broker 3 is known to have all records of t00-0, t01-0" in message
    assert "t09-0 and 2 more: start it again" in message
    assert bench.partition("t00").elr == (3,)


def test_an_unclean_election_gives_up_what_a_dead_broker_held(bench: Bench) -> None:
    bench.create(topic("t", 3, 1))
    bench.die(1)
    bench.die(3)
    bench.start(1)
    assert unregister(bench, 3)[0] == "INVALID_REQUEST"
    [result] = bench.elect(("t", 0), unclean=True)
    assert result.error_code is ErrorCode.NONE
    assert unregister(bench, 3)[0] == "NONE"
    assert bench.partition().leader_id == 1


def test_a_broker_that_is_removed_without_a_look_at_its_records_is_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: the controller does not look whether the broker alone holds a partition."""
    monkeypatch.setattr(PartitionDecisions, "held_alone_by", lambda *_: [])
    bench.create(topic("t", 3))
    bench.die(3)
    assert unregister(bench, 3)[0] == "NONE"
    bench.start(3)
    assert bench.partition().replicas == ids(3)
    assert bench.partition().leader_id == -1  # although its records are all there


def test_a_failure_has_an_outcome() -> None:
    response = failure_response(UnregisterBroker(broker_id=BrokerId(1)))
    assert isinstance(response, Outcomes)
    assert [one.error_code for one in response.results] == [ErrorCode.UNKNOWN_SERVER_ERROR]
