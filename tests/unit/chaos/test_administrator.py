"""What the administrator of a run says of its requests."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Self

import pytest

from quorumlog.chaos.back_ends import administrator
from quorumlog.chaos.back_ends.administrator import Administrator
from quorumlog.chaos.back_ends.back_end import NodeUnavailable
from quorumlog.client import TopicPartition


class Cluster:
    """Three brokers and a topic of one partition. `refuses` all changes, if it is told to."""

    def __init__(self) -> None:
        self.refuses, self.changes = False, list[Any]()

    def __call__(self, _bootstrap: str) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def _change(self, change: Mapping[Any, Any]) -> None:
        self.changes.append(change)
        if self.refuses:
            raise ConnectionError("no broker can be reached")

    async def describe_cluster(self) -> Any:
        return SimpleNamespace(nodes={1: "", 2: "", 3: ""})

    async def list_topics(self, *, include_internal: bool = False) -> list[str]:
        del include_internal
        return ["t"]

    async def describe_topics(self, names: list[str]) -> Any:
        return dict.fromkeys(names, SimpleNamespace(partitions={0: None}))

    async def list_partition_reassignments(self) -> dict[TopicPartition, Any]:
        return {}

    async def alter_partition_reassignments(self, changes: Mapping[Any, Any]) -> None:
        self._change(changes)

    async def create_partitions(self, counts: Mapping[str, int]) -> None:
        self._change(counts)

    async def alter_configs(self, _kind: str, _name: str, values: Mapping[str, Any]) -> None:
        self._change(values)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(administrator, "Admin", cluster)
    return cluster


def asking() -> Administrator:
    return Administrator("host:1", topic="t", brokers=3, fewer=1)


async def test_a_reassignment_says_which_partition_goes_where(cluster: Cluster) -> None:
    said = await asking().perform("reassign")
    [(at, replicas)] = cluster.changes[0].items()
    assert said == f"t-0 to {replicas}"
    assert at == TopicPartition("t", 0)


async def test_other_changes_say_what_is_changed(cluster: Cluster) -> None:
    assert await asking().perform("grow") == "t to 2 partitions"
    assert await asking().perform("throttle", 10) == "t to 10 bytes/s"
    assert await asking().perform("release") is None


@pytest.mark.parametrize(("operation", "said"), [("grow", "t to 2"), ("reassign", "t-0 to")])
async def test_a_refused_change_is_named(cluster: Cluster, operation: str, said: str) -> None:
    cluster.refuses = True
    with pytest.raises(NodeUnavailable, match=f"{said} .*: the cluster does not do it: no broker"):
        await asking().perform(operation)
