"""`quorumlog transactions` and `reassign` against fake brokers: tables, documents, refusals."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final, cast

import pytest

from quorumlog.cli.output import EXIT_FAILED, EXIT_USAGE
from quorumlog.cli.reassign_command import moving_replicas, throttled
from quorumlog.client import Admin, TopicPartition
from quorumlog.client.core.metadata_cache import PartitionView
from quorumlog.client.descriptions import ConfigValue
from quorumlog.clock import wall_clock_ms
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages import describe_producers as producers_
from quorumlog.wire.codec.messages.list_transactions import ListTransactionsRequest
from tests.support.cli.in_process import Shell
from tests.support.client.fake_admin import KEYS, built

ONGOING = {"transactional_id": "x", "producer_id": 7, "transaction_state": "Ongoing"}


def listing(shell: Shell, *states: dict[str, Any], unknown: tuple[str, ...] = ()) -> None:
    answer = {"transaction_states": [*states], "unknown_state_filters": [*unknown]}
    shell.offer("ListTransactions", answer)


def listings(shell: Shell) -> list[ListTransactionsRequest]:
    return [one for one in shell.cluster.requests() if isinstance(one, ListTransactionsRequest)]


def described(shell: Shell, **changes: object) -> None:
    times = {"transaction_timeout_ms": 60_000, "transaction_start_time_ms": 5}
    state = {**ONGOING, **times, "producer_epoch": 2, "topics": [{"topic": "t", "partitions": [0]}]}
    shell.offer("DescribeTransactions", {"transaction_states": [{**state, **changes}]})


def producers(shell: Shell, *states: dict[str, Any]) -> None:
    """Of t-0; the other partitions have none."""

    def answer(request: producers_.DescribeProducersRequest) -> Any:
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": index, "active_producers": [] if index else [*states]}
                    for index in topic.partition_indexes
                ],
            }
            for topic in request.topics
        ]
        return built(producers_.DescribeProducersResponse, {"topics": topics})

    shell.cluster.offers[KEYS["DescribeProducers"]] = (0, answer)


def producer(idle_ms: int = 3_600_000, *, start_offset: int = 40) -> dict[str, Any]:
    return {
        "producer_id": 7,
        "producer_epoch": 2,
        "last_timestamp": wall_clock_ms() - idle_ms,
        "coordinator_epoch": 3,
        "current_txn_start_offset": start_offset,
    }


def test_a_pattern_goes_to_every_broker_that_takes_one(shell: Shell) -> None:
    shell.offer("ListTransactions", {}, version=1)
    said = shell("transactions", "list", "--pattern", "x", status=EXIT_FAILED)
    assert "version 2 of ListTransactions is needed" in said
    assert listings(shell) == []
    listing(shell)
    shell("transactions", "list", "--pattern", "copy-[0-9]+")
    assert {one.transactional_id_pattern for one in listings(shell)} == {"copy-[0-9]+"}
    shell.offer("ListTransactions", {"error_code": ErrorCode.INVALID_REGULAR_EXPRESSION})
    said = shell("transactions", "list", "--pattern", "(", status=EXIT_FAILED)
    assert "INVALID_REGULAR_EXPRESSION" in said
    assert "ids that match '('" in said
    assert "its extra re2" in said


def test_transactional_ids_are_listed(shell: Shell) -> None:
    listing(shell, ONGOING)
    assert shell("transactions", "list").splitlines() == [
        "TRANSACTIONAL ID  STATE    PRODUCER ID  COORDINATOR",
        "x                 Ongoing            7            2",
    ]
    found = shell.json("transactions", "list", "--state", "Ongoing")
    expected = {"transactional_id": "x", "state": "Ongoing", "producer_id": 7, "coordinator_id": 2}
    assert found == {"transactions": [expected]}
    assert shell.cluster.requests()[-1].state_filters == ["Ongoing"]
    listing(shell, unknown=("Odd",))
    said = shell("transactions", "list", "--state", "Odd", status=EXIT_FAILED)
    assert "no transaction has a state of this name: Odd" in said


def test_a_transaction_is_described_by_its_coordinator(shell: Shell) -> None:
    described(shell)
    found = shell.json("transactions", "describe", "x")
    assert found.pop("coordinator_id") in {1, 2}
    assert found == {
        "transactional_id": "x",
        "state": "Ongoing",
        "producer_id": 7,
        "producer_epoch": 2,
        "timeout_ms": 60_000,
        "start_ms": 5,
        "partitions": ["t-0"],
    }
    assert "partitions: t-0" in shell("transactions", "describe", "x")
    described(shell, error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    said = shell("transactions", "describe", "x", status=EXIT_FAILED)
    assert "TRANSACTIONAL_ID_NOT_FOUND" in said


def test_what_no_coordinator_will_end_hangs(shell: Shell) -> None:
    words = ("transactions", "find-hanging", "--topic", "t")
    listing(shell)
    producers(shell, producer(start_offset=-1), producer(idle_ms=1_000))
    assert (shell(*words), shell.said) == ("", "no transaction hangs\n")
    producers(shell, producer())
    [one] = shell.json(*words, "--older-than", "1m")["hanging"]
    assert one.pop("idle_ms") >= 3_600_000
    at = {"topic": "t", "partition": 0, "producer_id": 7, "producer_epoch": 2}
    assert one == {**at, "start_offset": 40}
    listing(shell, ONGOING)
    described(shell)  # its coordinator will end it
    assert (shell(*words), shell.said) == ("", "no transaction hangs\n")
    described(shell, topics=[])
    assert "40" in shell(*words)


def test_a_transaction_that_hangs_is_aborted_by_its_leader(shell: Shell) -> None:
    def offer_marker(code: ErrorCode) -> None:
        topic = {"name": "t", "partitions": [{"partition_index": 0, "error_code": code}]}
        shell.offer("WriteTxnMarkers", {"markers": [{"producer_id": 7, "topics": [topic]}]})

    words = ("transactions", "abort", "--topic", "t", "--partition", "0", "--start-offset")
    producers(shell, producer())
    offer_marker(ErrorCode.NONE)
    assert shell(*words, "40") == "t-0: aborted the transaction of producer 7\n"
    [marker] = shell.cluster.requests()[-1].markers
    said = (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch)
    assert (said, marker.transaction_result) == ((7, 2, 3), False)
    assert "has no open transaction with first offset 41" in shell(*words, "41", status=EXIT_FAILED)
    offer_marker(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
    assert "TRANSACTION_COORDINATOR_FENCED" in shell(*words, "40", status=EXIT_FAILED)


LEADERS: Final = "leader.replication.throttled.replicas"
FOLLOWERS: Final = "follower.replication.throttled.replicas"
RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
MOVING: Final = {LEADERS: "0:1,1:1", FOLLOWERS: "0:2,1:3"}


def offer(shell: Shell, *moving: int) -> None:
    """Take every reassignment of t-0; `moving`: the partitions that are listed."""
    taken = {"name": "t", "partitions": [{"partition_index": 0}]}
    shell.offer("AlterPartitionReassignments", {"responses": [taken]})
    ongoing = {"name": "t", "partitions": [{"partition_index": index} for index in moving]}
    shell.offer("ListPartitionReassignments", {"topics": [ongoing]})


def test_a_partition_is_sent_away_without_waiting(shell: Shell) -> None:
    offer(shell)
    words = ("reassign", "--topic", "t", "--partition", "0", "--brokers", "2,3", "--detach")
    assert shell(*words) == "   0  replicas [2, 3]\n"
    partitions = [{"partition": 0, "replicas": [2, 3]}]
    assert shell.json(*words) == {"topic": "t", "completed": False, "partitions": partitions}
    asked = shell.cluster.requests()[0].topics[0].partitions
    assert [(one.partition_index, one.replicas) for one in asked] == [(0, [2, 3])]


def test_what_makes_no_sense_is_refused_before_anything_is_asked(shell: Shell) -> None:
    said = shell("reassign", "--topic", "t", status=EXIT_USAGE)
    assert "either --brokers or --cancel" in said
    said = shell("reassign", "--topic", "t", "--brokers", "1", "--cancel", status=EXIT_USAGE)
    assert "either --brokers or --cancel" in said
    for others in (("--detach", "--brokers", "1"), ("--cancel",)):
        words = ("reassign", "--topic", "t", "--throttle", "1000", *others)
        assert "lasts as long as the command" in shell(*words, status=EXIT_USAGE)
    for wrong in ("1,1", "a", "1,,2", ""):
        said = shell("reassign", "--topic", "t", "--brokers", wrong, status=EXIT_USAGE)
        assert "write different ids" in said


def test_what_moves_is_cancelled_where_there_are_reassignments(shell: Shell) -> None:
    said = shell("reassign", "--topic", "t", "--cancel", status=EXIT_FAILED)
    assert "this cluster has no ListPartitionReassignments" in said
    offer(shell, 0)
    assert shell("reassign", "--topic", "t", "--cancel") == "cancelled: t [0]\n"
    assert shell.cluster.requests()[-1].topics[0].partitions[0].replicas is None
    offer(shell)
    assert shell("reassign", "--topic", "t", "--cancel") == "t has no reassignment to cancel\n"


class Settings:
    """What an admin client alters: the settings of a topic and of all brokers, as a dict each."""

    def __init__(self, rates: Mapping[str, str] = MappingProxyType({})) -> None:
        listed = {LEADERS: "6:6", FOLLOWERS: "7:7"}
        self.of: dict[tuple[str, str], dict[str, str]] = {("topic", "t"): listed}
        self.of["broker", ""] = {**rates}
        self.refuses_rates = False

    async def describe_configs(self, kind: str, name: str) -> dict[str, ConfigValue]:
        return {
            key: ConfigValue(value=value, source=3, is_read_only=False, is_sensitive=False)
            for key, value in self.of[kind, name].items()
        }

    async def alter_configs(
        self,
        kind: str,
        name: str,
        values: Mapping[str, Any] = MappingProxyType({}),
        *,
        delete: Iterable[str] = (),
        append: Mapping[str, str] = MappingProxyType({}),
        subtract: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        if kind == "broker" and self.refuses_rates:
            raise ConnectionError("refused")
        settings = self.of[kind, name]
        settings |= {key: str(value) for key, value in values.items()}
        settings |= {key: f"{settings[key]},{more}" for key, more in append.items()}
        settings |= {key: settings[key].removesuffix(f",{less}") for key, less in subtract.items()}
        for key in delete:
            del settings[key]


@pytest.mark.parametrize(
    "former", [{}, {RATES[0]: "5"}, {RATES[1]: "5"}, dict.fromkeys(RATES, "5")]
)
async def test_a_throttle_gives_way_to_what_was_set_before(former: dict[str, str]) -> None:
    settings = Settings(former)
    before = deepcopy(settings.of)
    async with throttled(cast("Admin", settings), "t", MOVING, 1000):
        assert settings.of["broker", ""] == dict.fromkeys(RATES, "1000")
        assert settings.of["topic", "t"] == {LEADERS: "6:6,0:1,1:1", FOLLOWERS: "7:7,0:2,1:3"}
    assert settings.of == before


async def test_a_throttle_that_is_refused_leaves_nothing_behind() -> None:
    settings = Settings()
    before = deepcopy(settings.of)
    settings.refuses_rates = True
    with pytest.raises(ConnectionError):
        async with throttled(cast("Admin", settings), "t", MOVING, 1000):
            pass
    assert settings.of == before


def test_only_partitions_that_get_replicas_are_throttled() -> None:
    def view(*replicas: int) -> PartitionView:
        return cast("PartitionView", SimpleNamespace(replicas=replicas))

    found = {0: view(1, 2), 1: view(2, 3), 2: view(1, 2, 3)}
    targets = {TopicPartition("t", index): (2, 3) for index in range(4)}
    assert moving_replicas(found, targets) == {LEADERS: "0:1,0:2", FOLLOWERS: "0:3"}
    assert moving_replicas(found, {TopicPartition("t", 1): (3, 2)}) == {}
