"""Whole nodes by subject, under faults: what is promised holds, and a planted bug is found."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from quorumlog.broker.partitions.core.partition_invariants import PartitionInvariants
from quorumlog.broker.partitions.log.log_directories import LogDirectories
from quorumlog.chaos.node_simulation.settings import NodesResult
from quorumlog.chaos.node_simulation.simulate import simulate_nodes
from quorumlog.client.core.position import Position
from quorumlog.client.core.positions import Positions
from quorumlog.metadata_quorum.core.messages import SnapshotId
from quorumlog.metadata_quorum.driver import snapshot_schedule
from quorumlog.metadata_quorum.image.model import ClusterImage
from quorumlog.metadata_quorum.image.records import MetadataRecord, ProducerIds
from quorumlog.metadata_quorum.image.snapshot_records import records_of
from quorumlog.metadata_quorum.log.metadata_log import MetadataLog
from quorumlog.storage.core.cleaning import NewestOffsets
from quorumlog.storage.core.retention import Retention

pytestmark = pytest.mark.integration

COMPACTION: Final[dict[str, Any]] = {
    "duration_ms": 6_000,
    "workload": "compacted_register",
    "config": {
        "log.cleaner.backoff.ms": "200",
        "log.segment.bytes": "1500",
        "log.cleaner.min.cleanable.ratio": "0.01",
        "log.cleaner.delete.retention.ms": "1000",
    },
}
DIRECTORIES: Final[dict[str, Any]] = {
    "duration_ms": 8_000,
    "config": {"log.dirs": "/data,/disk2"},
    "faults": {"disk_error", "kill", "wipe", "kill_all", "restart"},
}
RECREATION: Final[dict[str, Any]] = {
    "duration_ms": 6_000,
    "workload": "recreated_topic",
    "faults": ("kill",),
}
TRANSACTIONS: Final[dict[str, Any]] = {
    "duration_ms": 6_000,
    "faults": ("kill", "pause", "drop_request", "reply_lost"),  # the last two: among others
}


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        *((seed, COMPACTION) for seed in (3, 19)),
        (1, RECREATION),
        (1, {**TRANSACTIONS, "workload": "txn_append"}),
        (1, {**TRANSACTIONS, "workload": "consume_transform_produce"}),
        (5, {**TRANSACTIONS, "workload": "txn_transfer"}),
    ],
)
def test_what_is_promised_holds_under_faults(seed: int, options: dict[str, Any]) -> None:
    result = simulate_nodes(seed, **options)
    assert (result.violations, result.anomalies) == ((), ())
    assert result.valid is True or options is COMPACTION
    assert result.operations > 200


def test_what_is_promised_holds_while_directories_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    noted, fail = tmp_path / "failed", LogDirectories.fail

    def note_and_fail(directories: LogDirectories, *arguments: Any) -> Any:
        noted.touch()
        return fail(directories, *arguments)

    monkeypatch.setattr(LogDirectories, "fail", note_and_fail)
    for seed in (1, 4, 7):
        result = simulate_nodes(seed, **DIRECTORIES)
        assert (result.violations, result.anomalies) == ((), ()), seed
        assert result.operations > 200, seed
    assert noted.exists()


@pytest.mark.parametrize(
    ("mutant", "workload", "anomaly"),
    [
        ("shows_open_transactions", "txn_append", "G1b"),
        ("hides_aborted_transactions", "txn_append", "G1a"),
        ("commits_what_is_aborted", "txn_append", "G1a"),
        ("keeps_offsets_of_the_aborted", "consume_transform_produce", "unconsumed"),
    ],
)
def test_a_broken_transaction_is_found(mutant: str, workload: str, anomaly: str) -> None:
    result = simulate_nodes(0, **TRANSACTIONS, workload=workload, mutant=mutant)
    assert result.valid is False
    assert anomaly in result.anomalies


@pytest.mark.parametrize("seed", [1, 7])
def test_rights_and_passwords_hold_on_simulated_nodes(seed: int) -> None:
    result = simulate_nodes(seed, duration_ms=6_000, workload="authorized")
    assert (result.violations, result.anomalies) == ((), ())
    figures = result.verdict["figures"]
    assert all(figures[f"judged_{one}"] for one in ("allowed", "denied", "logins"))


@pytest.mark.parametrize(
    "mutant", ["ignores_denials", "prefixes_match_anywhere", "keeps_decisions"]
)
def test_a_broken_right_is_found(mutant: str) -> None:
    result = simulate_nodes(0, workload="authorized", faults=["kill"], mutant=mutant)
    assert "denied-write-accepted" in result.anomalies


@pytest.mark.parametrize(("seed", "exactly_once"), [(1, 1), (10, 0)])
def test_a_mirror_copies_each_record_while_it_and_the_nodes_fail(
    seed: int, exactly_once: int
) -> None:
    options = {"exactly_once": exactly_once}
    result = simulate_nodes(seed, duration_ms=6_000, workload="mirror", options=options)
    assert (result.valid, result.violations) == (True, ())
    figures = result.verdict["figures"]
    assert figures["copied"] >= figures["acknowledged"] > 50
    assert figures["translated"] > 0
    assert exactly_once == 0 or figures["copied_again"] == 0


@pytest.mark.parametrize(
    ("seed", "mutant", "anomaly"),
    [
        (1, "commits_positions_first", "lost-copy"),
        (0, "translates_one_too_far", "translated-ahead"),
        (0, "resumes_in_reverse", "reordered-copy"),
    ],
)
def test_a_broken_mirror_is_found(seed: int, mutant: str, anomaly: str) -> None:
    short: dict[str, Any] = {"duration_ms": 6_000, "options": {"life_ms": 500}}
    result = simulate_nodes(seed, workload="mirror", faults=["kill"], mutant=mutant, **short)
    assert result.valid is False
    assert anomaly in result.anomalies


IDEMPOTENCE: Final[dict[str, Any]] = {"workload": "idempotent_send", "faults": ("ack_kill",)}
UNDER_LOAD: Final[dict[str, Any]] = {"workload": "idempotent_send", "faults": ("pause_kill",)}


@pytest.mark.parametrize("mutant", ["followers_forget_producers", "forgets_one_producer"])
def test_a_replica_that_forgets_producers_is_found_where_answers_and_leaders_are_lost(
    mutant: str,
) -> None:
    result = simulate_nodes(0, **IDEMPOTENCE, mutant=mutant)
    assert result.valid is False
    assert "duplicate" in result.anomalies


def test_acknowledgements_before_replication_are_found_where_batches_wait_beside_pauses() -> None:
    result = simulate_nodes(1, **UNDER_LOAD, mutant="acks_early_under_load")
    assert result.valid is False
    assert "lost-write" in result.anomalies
    sound = simulate_nodes(1, **UNDER_LOAD)
    assert (sound.valid, sound.anomalies, sound.violations) == (True, (), ())


def test_no_batch_is_appended_twice_where_answers_and_leaders_are_lost() -> None:
    result = simulate_nodes(0, **IDEMPOTENCE)
    assert (result.valid, result.anomalies, result.violations) == (True, (), ())
    assert set(result.faults) == {"ack_kill"}


def test_a_cleaner_that_drops_the_newest_value_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NewestOffsets, "is_replaced", lambda *_: True)
    assert simulate_nodes(3, **COMPACTION).anomalies


def test_a_cleaner_that_drops_some_keys_is_found_by_registers_that_were_written_once() -> None:
    longer = {**COMPACTION, "duration_ms": 8_000}
    result = simulate_nodes(0, **longer, mutant="drops_the_newest_of_some_keys")
    keys = {one["key"] for one in result.verdict["anomalies"]["nonlinearizable"]["witnesses"]}
    assert {"c6", "c7"} <= keys


def test_a_position_that_outlives_its_topic_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def enter(_: Positions, position: Position, topic_id: bytes) -> bool:
        position.topic_id = topic_id
        return True

    monkeypatch.setattr(Positions, "maybe_enter", enter)
    assert "skipped-record" in simulate_nodes(1, **RECREATION).anomalies


# --- retention: below the log starts the oracle compares nothing ---


def removed(seed: int, retention_bytes: str, *, until_violated: bool = False) -> NodesResult:
    """Its workload expects to read all that it wrote, so its history shows removed records."""
    config = {
        "log.retention.bytes": retention_bytes,
        "log.segment.bytes": "500",
        "log.retention.check.interval.ms": "100",
    }
    return simulate_nodes(seed, duration_ms=5_000, config=config, until_violated=until_violated)


@pytest.mark.parametrize("seed", [2, 8])
def test_the_records_that_are_left_are_right(seed: int) -> None:
    result = removed(seed, "1500")
    assert result.violations == ()
    assert "vanished-write" in result.anomalies  # segments are gone


def test_a_broker_that_removes_what_is_not_committed_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Retention, "is_committed", lambda *_: True)
    monkeypatch.setattr(PartitionInvariants, "check", lambda *_, **__: None)
    result = removed(2, "0", until_violated=True)
    assert result.violations[0].startswith("committed-kept")


# --- snapshots: nodes cut their metadata logs, and those far behind get snapshots ---


def cut(workload: str, *, until_violated: bool = False) -> NodesResult:
    config = {
        "metadata.log.max.record.bytes.between.snapshots": "300",
        "metadata.log.segment.bytes": "400",
        "metadata.max.retention.bytes": "500",
    }
    return simulate_nodes(
        1, duration_ms=5_000, workload=workload, config=config, until_violated=until_violated
    )


def noting(
    install: Callable[[MetadataLog, SnapshotId], None], noted: Path
) -> Callable[[MetadataLog, SnapshotId], None]:
    """Note each installation in a file: the run is in another process."""

    def install_and_note(log: MetadataLog, snapshot_id: SnapshotId) -> None:
        install(log, snapshot_id)
        noted.write_text(snapshot_id.file_name)

    return install_and_note


def test_nodes_far_behind_agree_with_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    noted = tmp_path / "installed"
    install = noting(MetadataLog.install_fetched, noted)
    monkeypatch.setattr(MetadataLog, "install_fetched", install)
    result = cut("metadata_linearizable")
    assert (result.valid, result.violations, result.anomalies) == (True, (), ())
    assert noted.exists()


def test_a_snapshot_that_lacks_a_record_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def incomplete(image: ClusterImage) -> Iterator[MetadataRecord]:
        return (record for record in records_of(image) if not isinstance(record, ProducerIds))

    monkeypatch.setattr(snapshot_schedule, "records_of", incomplete)
    result = cut("idempotent_send", until_violated=True)
    assert result.violations[0].startswith("metadata-agree: ")
