"""`quorumlog reassign` against fake brokers."""

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
from tests.support.cli.in_process import Shell

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


def test_what_moves_is_cancelled_and_nothing_else(shell: Shell) -> None:
    offer(shell, 0)
    assert shell("reassign", "--topic", "t", "--cancel") == "cancelled: t [0]\n"
    assert shell.cluster.requests()[-1].topics[0].partitions[0].replicas is None
    offer(shell)
    assert shell("reassign", "--topic", "t", "--cancel") == "t has no reassignment to cancel\n"


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


def test_a_cluster_without_reassignment_says_so(shell: Shell) -> None:
    said = shell("reassign", "--topic", "t", "--cancel", status=EXIT_FAILED)
    assert "this cluster has no ListPartitionReassignments" in said


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
