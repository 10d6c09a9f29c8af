"""Administrators of a run: what they change and say, what they leave, levels of features."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, Self, cast

import pytest

from quorumlog.chaos.back_ends import admin_churner, administrator
from quorumlog.chaos.back_ends.admin_churner import AdminChurner, FeatureLevels
from quorumlog.chaos.back_ends.administrator import Administrator
from quorumlog.chaos.back_ends.back_end import NodeUnavailable
from quorumlog.client import Admin as RealAdmin
from quorumlog.client import TopicPartition
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from quorumlog.wire.codec.messages.update_features import (
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class ChurnedCluster:
    """Takes the requests of one administrator; `outages` are the numbers of those that fail."""

    def __init__(self, outages: set[int]) -> None:
        self.topics = dict[str, int]()
        self.most, self.configured, self.elections, self.requests = 0, 0, 0, 0
        self.replicas = dict[TopicPartition, tuple[int, ...]]()
        self.moves = list[tuple[int, ...]]()
        self.brokers = {1, 2, 3}  # that are live
        self.tuned, self.unregistered = dict[str, Any](), list[int]()
        self.level, self.levels = 1, list[int]()
        self._outages = outages

    def request(self) -> None:
        self.requests += 1
        if self.requests in self._outages:
            raise ConnectionError("no broker can be reached")

    def __call__(self, bootstrap: str) -> "Admin":
        assert bootstrap == "host:1"
        return Admin(self)


class Admin:
    def __init__(self, cluster: ChurnedCluster) -> None:
        self.cluster = cluster

    async def __aenter__(self) -> Self:
        self.cluster.request()
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def create_topics(self, topics: list[Any]) -> None:
        self.cluster.request()
        self.cluster.topics |= {topic.name: topic.num_partitions for topic in topics}
        self.cluster.most = max(self.cluster.most, len(self.cluster.topics))

    async def create_partitions(self, counts: Mapping[str, int]) -> None:
        self.cluster.request()
        if self.cluster.topics.keys() >= counts.keys():
            self.cluster.topics |= counts

    async def alter_configs(
        self, kind: str, name: str, values: Mapping[str, Any] = _NOTHING, delete: Iterable[str] = ()
    ) -> None:
        self.cluster.request()
        if kind == "broker":
            assert name == ""
            assert bool(values) != bool(delete)
            self.cluster.tuned = dict(values)
            return
        assert name.startswith("churn-")
        assert values
        self.cluster.configured += 1

    async def unregister_broker(self, broker_id: int) -> None:
        self.cluster.request()
        assert broker_id not in self.cluster.brokers
        self.cluster.unregistered.append(broker_id)

    async def request(self, request: object) -> Any:
        self.cluster.request()
        if isinstance(request, ApiVersionsRequest):
            supported = SimpleNamespace(name="f", min_version=1, max_version=2)
            now = SimpleNamespace(name="f", max_version_level=self.cluster.level)
            return SimpleNamespace(supported_features=[supported], finalized_features=[now])
        assert isinstance(request, UpdateFeaturesRequest)
        [update] = request.feature_updates
        assert (update.feature, update.upgrade_type) == ("f", 3 - update.max_version_level)
        self.cluster.levels += [update.max_version_level]
        self.cluster.level = update.max_version_level
        return SimpleNamespace(error_code=0)

    async def elect_leaders(self) -> None:
        self.cluster.request()
        self.cluster.elections += 1

    async def describe_cluster(self) -> Any:
        self.cluster.request()
        return SimpleNamespace(nodes=dict.fromkeys(self.cluster.brokers))

    async def describe_topics(self, names: list[str]) -> dict[str, Any]:
        self.cluster.request()
        assert names == ["chaos"] or names[0].startswith("churn-")
        replicas = self.cluster.replicas.get(TopicPartition(names[0], 0), (1, 2, 3))
        return {names[0]: SimpleNamespace(partitions={0: SimpleNamespace(replicas=replicas)})}

    async def alter_partition_reassignments(
        self, targets: Mapping[TopicPartition, tuple[int, ...]]
    ) -> None:
        self.cluster.request()
        await asyncio.sleep(0)
        self.cluster.replicas |= targets
        self.cluster.moves += targets.values()

    async def list_topics(self) -> list[str]:
        return ["chaos", *self.cluster.topics]

    async def delete_topics(self, names: Iterable[str]) -> None:
        self.cluster.request()
        for name in names:
            self.cluster.topics.pop(name, None)


class Producer:
    def __init__(self, bootstrap: str, **_: int) -> None:
        assert bootstrap == "host:1"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def send_and_wait(self, topic: str, value: bytes) -> None:
        assert topic.startswith("churn-")
        assert value


async def churned(
    monkeypatch: pytest.MonkeyPatch, outages: set[int], until: Callable[[ChurnedCluster], bool]
) -> tuple[ChurnedCluster, AdminChurner]:
    cluster = ChurnedCluster(outages)
    monkeypatch.setattr(admin_churner, "Admin", cluster)
    monkeypatch.setattr(admin_churner, "Producer", Producer)
    churner = AdminChurner("host:1")
    churner.start(per_s=10)
    churner.start(per_s=10)
    while not until(cluster):
        await asyncio.sleep(0.1)
    await churner.stop()
    await churner.stop()
    return cluster, churner


@pytest.mark.jumping_time
async def test_topics_come_change_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    cluster, churner = await churned(monkeypatch, set(), lambda seen: seen.elections == 10)
    assert cluster.topics == {}
    assert cluster.most == 4
    assert cluster.configured == 10
    assert churner.changes == 84
    assert cluster.levels == [2, 1, 2, 1, 2, 1, 2, 1, 2]
    assert cluster.unregistered == [], "none is gone"
    assert cluster.tuned == {}, "it is taken back"
    assert 9 < loop.time() - started_s < 11, "about ten changes a second"
    assert {len({*replicas}) for replicas in cluster.moves} <= {2, 3}
    assert len(cluster.moves) >= 10
    moved = {at: ids for at, ids in cluster.replicas.items() if at.topic == "chaos"}
    assert all(len(ids) == 3 for ids in moved.values()), "all are back in the end"


@pytest.mark.jumping_time
async def test_a_partition_is_moved_back_when_brokers_live(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = TopicPartition("chaos", 0)

    def until(cluster: ChurnedCluster) -> bool:
        """Wait until our partition was moved; then a broker dies, before the churner stops."""
        if ours in cluster.replicas:
            cluster.brokers.discard(3)
            cluster.replicas[ours] = (1, 2)
        return ours in cluster.replicas

    cluster, churner = await churned(monkeypatch, set(), until)
    assert cluster.replicas[ours] == (1, 2), "with two brokers, there are no three replicas"
    moves = len(cluster.moves)
    await churner.stop()
    assert len(cluster.moves) == moves
    cluster.brokers.add(3)
    await asyncio.gather(churner.stop(), churner.stop())  # the end of a fault, and of the run
    assert sorted(cluster.replicas[ours]) == [1, 2, 3]
    requests = cluster.requests
    await churner.stop()
    assert cluster.requests == requests, "nothing is left to do"


@pytest.mark.jumping_time
async def test_a_cluster_that_refuses_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    outages = {1, 2, 8, 9, 20, 33}
    cluster, _ = await churned(monkeypatch, outages, lambda seen: seen.elections == 10)
    assert cluster.requests > 60 + len(outages)
    assert cluster.topics == {}


@pytest.mark.jumping_time
async def test_a_broker_that_is_gone_is_unregistered(monkeypatch: pytest.MonkeyPatch) -> None:
    def until(cluster: ChurnedCluster) -> bool:
        if cluster.moves:
            cluster.brokers.discard(3)
        return cluster.elections == 10

    cluster, _ = await churned(monkeypatch, set(), until)
    assert {*cluster.unregistered} == {3}


class Cluster:
    """Three brokers and a topic of one partition. `refuses` all changes, if it is told to."""

    def __init__(self) -> None:
        self.refuses, self.changes = False, list[Any]()
        self.quotas: dict[str, dict[str, float]] = {}

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

    async def alter_client_quotas(
        self,
        entity: Mapping[str, str | None],
        values: Mapping[str, float] = _NOTHING,
        delete: Iterable[str] = (),
    ) -> None:
        quotas = self.quotas.setdefault(repr(entity), {})
        quotas.update(values)
        for key in delete:
            quotas.pop(key, None)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(administrator, "Admin", cluster)
    return cluster


def asking() -> Administrator:
    return Administrator("host:1", topic="t", brokers=3, fewer=1)


async def test_a_change_says_what_is_changed(cluster: Cluster) -> None:
    said = await asking().perform("reassign")
    [(at, replicas)] = cluster.changes[0].items()
    assert said == f"t-0 to {replicas}"
    assert at == TopicPartition("t", 0)
    assert await asking().perform("grow") == "t to 2 partitions"
    assert await asking().perform("throttle", 10) == "t to 10 bytes/s"
    assert await asking().perform("release") is None


async def test_quotas_of_clients_are_set_and_all_of_them_are_removed(cluster: Cluster) -> None:
    administrator = asking()
    for _ in range(4):
        said = await administrator.perform("limit", 1000)
        assert said is not None
        assert said.endswith(" to 1000 bytes/s")
    assert cluster.quotas
    assert await administrator.perform("unlimit") is None
    assert not any(cluster.quotas.values())


@pytest.mark.parametrize(("operation", "said"), [("grow", "t to 2"), ("reassign", "t-0 to")])
async def test_a_refused_change_is_named(cluster: Cluster, operation: str, said: str) -> None:
    cluster.refuses = True
    with pytest.raises(NodeUnavailable, match=f"{said} .*: the cluster does not do it: no broker"):
        await asking().perform(operation)


HIGHEST = {"group.version": 1, "transaction.version": 2}


class Features:
    """Has features at these levels. `refuses` to change them, if it is told to."""

    def __init__(self) -> None:
        self.levels, self.refuses = {**HIGHEST}, False

    async def request(self, request: Any) -> Any:
        if isinstance(request, ApiVersionsRequest):
            return ApiVersionsResponse(
                error_code=0,
                api_keys=[],
                throttle_time_ms=0,
                supported_features=[
                    SupportedFeatureKey(name=name, min_version=0, max_version=level)
                    for name, level in HIGHEST.items()
                ],
                finalized_features=[
                    FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=0)
                    for name, level in self.levels.items()
                    if level
                ],
            )
        assert isinstance(request, UpdateFeaturesRequest)
        (update,) = request.feature_updates
        error_code = ErrorCode.FEATURE_UPDATE_FAILED if self.refuses else ErrorCode.NONE
        if not self.refuses:
            self.levels[update.feature] = update.max_version_level
        return UpdateFeaturesResponse(
            throttle_time_ms=0, error_code=error_code, error_message=None, results=[]
        )


async def test_what_was_lowered_is_raised_again() -> None:
    cluster, levels = Features(), FeatureLevels()
    admin = cast(RealAdmin, cluster)
    while HIGHEST["group.version"] == cluster.levels["group.version"]:
        assert await levels.change_one(admin)
    assert levels.are_lowered
    for _ in range(20):
        assert await levels.change_one(admin)
    await levels.raise_again(admin)
    assert cluster.levels == HIGHEST
    assert not levels.are_lowered


async def test_what_the_cluster_does_not_raise_yet_is_asked_for_again() -> None:
    cluster, levels = Features(), FeatureLevels()
    admin = cast(RealAdmin, cluster)
    assert await levels.change_one(admin)
    cluster.refuses = True
    assert not await levels.change_one(admin)
    await levels.raise_again(admin)
    assert levels.are_lowered
    cluster.refuses = False
    await levels.raise_again(admin)
    assert cluster.levels == HIGHEST
