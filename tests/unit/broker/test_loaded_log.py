"""Threads that open the logs of one directory do so in turn, and not behind a slow disk."""

from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker.partitions.core.placement import Standing
from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.broker.partitions.log import loaded_log
from quorumlog.broker.partitions.log.loaded_log import LoadedLog, load_log
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.metadata_quorum.image import TopicImage
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition
from tests.support.broker.log_directories import started

AT = TopicPartition("orders", 0)
ORDERS = TopicImage(name="orders", topic_id=TopicId(b"o" * 16), partitions=(), configs={})


@pytest.fixture
def home(tmp_path: Path) -> LogDirectory:
    return started(tmp_path)


def load(home: LogDirectory) -> LoadedLog:
    return load_log(home, AT, ORDERS, Standing.SPARE, ProducerStates, note_read=lambda _: None)


class Turn:
    """A lock that notes what is done with it."""

    def __init__(self, seen: list[str]) -> None:
        self._seen = seen

    def acquire(self, *, timeout: float) -> bool:
        self._seen.append(f"taken within {timeout} s")
        return True

    def release(self) -> None:
        self._seen.append("given back")


def test_a_log_is_opened_while_no_other_one_is(
    home: LogDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[str]()
    monkeypatch.setattr(home, "opening", Turn(seen))
    open_log = home.open

    def noted(*arguments: Any, **named: Any) -> Any:
        seen.append("opened")
        return open_log(*arguments, **named)

    monkeypatch.setattr(home, "open", noted)
    load(home).log.close(clean=False)
    assert seen == ["taken within 0.02 s", "opened", "given back"]


def test_a_log_does_not_wait_long_for_a_slow_disk(home: LogDirectory) -> None:
    with home.opening:  # of a thread whose disk is slow
        load(home).log.close(clean=False)
        assert home.opening.locked()  # still the other's
    assert not home.opening.locked()


def test_a_log_that_cannot_be_opened_ends_its_turn(home: LogDirectory, tmp_path: Path) -> None:
    (tmp_path / str(AT)).write_bytes(b"no directory")
    with pytest.raises(StorageError):
        load(home)
    assert not home.opening.locked()


def test_logs_that_must_last_are_opened_beside_each_other(
    home: LogDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their threads wait for fsyncs, which a file system makes durable together."""
    monkeypatch.setattr(loaded_log, "TURN_S", 60.0)
    home.must_last = True
    with home.opening:
        load(home).log.close(clean=False)
