"""Planted bugs of brokers with several log directories: each one is noticed."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker.partitions.core.placement import NoPlace, place
from quorumlog.broker.partitions.log import log_directories
from quorumlog.broker.partitions.log.log_directories import LogDirectories
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.metadata_quorum.controller import partitions
from quorumlog.metadata_quorum.controller.log_loss import LogLoss, Losses
from quorumlog.metadata_quorum.controller.partition_changes import PartitionChanges
from quorumlog.metadata_quorum.controller.partitions import Departure
from quorumlog.metadata_quorum.controller.slices import Slices
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.identifiers import TopicPartition
from tests.unit.broker import test_directory_failures as failures
from tests.unit.broker import test_log_directories as directories
from tests.unit.metadata_quorum import test_controller_directories as controller


def the_whole_broker_fails(
    self: LogDirectories, directory: LogDirectory, error: StorageError
) -> list[TopicPartition]:
    self.last_has_failed = True
    return []


def made_anew(candidates: Sequence[Any], assigned: str | None, **what: bool) -> int | NoPlace:
    return place(candidates, assigned, has_offline=False, is_new=what["is_new"])


Story = Callable[[Path], Awaitable[None]]


def of_directories(story: Callable[[Path], None]) -> Story:
    async def told(tmp_path: Path) -> None:
        story(tmp_path)

    return told


def of_controller(story: Callable[[], None]) -> Story:
    return of_directories(lambda _: story())


@pytest.mark.parametrize(
    ("owner", "name", "broken", "story"),
    [
        pytest.param(
            LogDirectories,
            "fail",
            the_whole_broker_fails,
            failures.test_logs_of_the_other_directory_go_on,
            id="the whole broker is given up although one directory of two has failed",
        ),
        pytest.param(
            log_directories,
            "place",
            made_anew,
            failures.test_a_log_that_may_be_in_a_lost_directory_is_not_made_anew,
            id="a log is made anew although it may be in a directory that cannot be used",
        ),
        pytest.param(
            LogDirectories,
            "_holds",
            lambda *_: False,
            of_directories(directories.test_logs_are_spread_and_found_again),
            id="a log is not looked for where it is",
        ),
        pytest.param(
            LogDirectory,
            "was_clean",
            property(lambda _: True),
            of_directories(directories.test_only_the_logs_of_an_unclean_directory_are_checked),
            id="a directory counts as closed because its neighbour was",
        ),
        pytest.param(
            Slices,
            "departure_of_directories",
            lambda *_: Departure((), (), is_whole=True),
            of_controller(controller.test_a_directory_that_fails_takes_only_its_replicas_out),
            id="the ISR keeps a replica whose directory has failed",
        ),
        pytest.param(
            partitions,
            "can_use_log",
            lambda *_: True,
            of_controller(controller.test_a_replica_in_a_failed_directory_is_not_taken_back),
            id="the ISR takes back a replica whose directory has failed",
        ),
        pytest.param(
            Losses,
            "of",
            lambda *_: LogLoss.NOTHING,
            of_controller(controller.test_a_replaced_directory_leads_nothing_that_was_in_it),
            id="a directory that was replaced counts as the one before",
        ),
        pytest.param(
            PartitionChanges,
            "_with_log",
            lambda _self, _directories, active: active,
            of_controller(controller.test_the_last_replica_leads_again_when_its_directory_is_back),
            id="a replica leads whose directory cannot be used",
        ),
    ],
)
async def test_a_planted_bug_is_noticed(
    owner: Any, name: str, broken: Any, story: Story, request: pytest.FixtureRequest
) -> None:
    tmp_path: Path = request.getfixturevalue("tmp_path")
    monkeypatch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises((AssertionError, StorageError)):
        await story(tmp_path)
