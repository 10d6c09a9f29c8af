"""Watching who leads what: what is written of each answer, and what when there is none."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from quorumlog.chaos.run import cluster_states
from quorumlog.chaos.run.cluster_states import PartitionState, read_states, watch
from quorumlog.client import KafkaError
from quorumlog.client.core.metadata_cache import PartitionView
from quorumlog.wire.codec.error_codes import ErrorCode

NO_ANSWER = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no broker", definite=False)
pytestmark = pytest.mark.jumping_time


@dataclass
class Cluster:
    """A cluster that a test changes while it is watched."""

    leader: int = 1
    isr: tuple[int, ...] = (3, 1, 2)
    controller: int | Exception = 1
    answers: bool = True
    opened: int = 0
    asked: list[str] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self.opened += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def describe_topics(self, topics: Sequence[str]) -> dict[str, Any]:
        self.asked += topics
        if not self.answers:
            raise NO_ANSWER
        view = PartitionView(leader_id=self.leader, leader_epoch=self.leader, isr=self.isr)
        return {name: SimpleNamespace(partitions={0: view}) for name in topics}

    async def describe_quorum(self) -> Any:
        if isinstance(self.controller, Exception):
            raise self.controller
        return SimpleNamespace(leader_id=self.controller)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(cluster_states, "Admin", lambda *_, **__: cluster)
    return cluster


@contextlib.asynccontextmanager
async def watched(directory: Path) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()

    def elapsed_ns() -> int:
        return round(loop.time() * 1e9)

    watching = asyncio.create_task(
        watch({"bootstrap_servers": "b:9092"}, ["t"], directory, elapsed_ns)
    )
    await asyncio.sleep(1)
    yield
    await asyncio.sleep(1)
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching


async def test_an_answer_is_written_once_until_it_changes(cluster: Cluster, tmp_path: Path) -> None:
    async with watched(tmp_path):
        cluster.leader, cluster.isr = 2, (2,)
    first, second = read_states(tmp_path)
    assert first.partitions == {"t-0": PartitionState(leader=1, epoch=1, isr=(1, 2, 3))}
    assert second.partitions == {"t-0": PartitionState(leader=2, epoch=2, isr=(2,))}
    assert (first.time_ns, first.controller) == (0, 1)
    assert 1.0e9 <= second.time_ns <= 1.25e9
    assert cluster.opened == 1
    assert len(cluster.asked) >= 8


async def test_no_answer_is_written_and_asked_again(cluster: Cluster, tmp_path: Path) -> None:
    async with watched(tmp_path):
        cluster.answers = False
        await asyncio.sleep(1)
        cluster.answers = True
    states = read_states(tmp_path)
    assert [state.error for state in states] == ["", str(NO_ANSWER), ""]
    assert states[1].partitions == {}
    assert states[2].partitions == states[0].partitions
    assert cluster.opened > 1


@pytest.mark.parametrize("error", [NO_ANSWER, ConnectionError("refused")])
async def test_a_quorum_that_is_not_told_leaves_the_partitions_known(
    cluster: Cluster, tmp_path: Path, error: Exception
) -> None:
    cluster.controller = error
    async with watched(tmp_path):
        pass
    (state,) = read_states(tmp_path)
    assert state.controller == -1
    assert state.partitions["t-0"].leader == 1


async def test_what_was_watched_is_on_disk_at_once(cluster: Cluster, tmp_path: Path) -> None:
    async with watched(tmp_path):
        assert len(read_states(tmp_path)) == 1


async def test_a_directory_that_is_gone_ends_the_watching(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await watch({"bootstrap_servers": "b:9092"}, ["t"], tmp_path / "gone", lambda: 0)
