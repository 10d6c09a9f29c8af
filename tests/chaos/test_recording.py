"""What is written down, and how a run ends: by a signal, a full disk, a dead node, a bug."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from quorumlog.chaos.checkers import check_history
from quorumlog.chaos.drivers.driver import Record, SendFailed
from quorumlog.chaos.history import HistoryWriter, read_history
from quorumlog.chaos.run.interruption import Interruption
from quorumlog.chaos.run.run import run
from quorumlog.chaos.run.run_directory import make_room
from quorumlog.chaos.run.run_settings import RunSettings
from quorumlog.chaos.workloads.append_read import AppendRead
from quorumlog.chaos.workloads.workload import LaneOptions, Setup
from quorumlog.cli.verify import verify
from tests.support.chaos.hand_made_histories import History, rows_of
from tests.support.chaos.log_in_memory import Client, LogInMemory

# --- signals ---


@pytest.fixture
def _heeded(number: int) -> Iterator[None]:
    """A signal that is not ignored: a shell starts its background jobs with SIGINT ignored."""
    is_interrupt = number == signal.SIGINT
    before = signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)
    yield
    signal.signal(number, before)


@pytest.mark.usefixtures("_heeded")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_ends_the_run_and_a_second_does_not_end_the_tidying(number: int) -> None:
    tidied = []

    def interrupted() -> None:
        with Interruption():
            try:
                os.kill(os.getpid(), number)
            finally:
                os.kill(os.getpid(), number)
                tidied.append(True)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert tidied
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


async def test_a_signal_cancels_what_runs_on_the_loop() -> None:
    async def work(interruption: Interruption) -> str:
        task = asyncio.current_task()
        assert task is not None
        interruption.cancel = lambda: asyncio.get_running_loop().call_soon_threadsafe(task.cancel)
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "cancelled"
        return "not cancelled"

    with Interruption() as interruption:
        assert await work(interruption) == "cancelled"


def test_what_was_ignored_stays_ignored_and_threads_change_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruption():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)

    def elsewhere() -> None:
        with Interruption():
            seen.append(signal.getsignal(signal.SIGTERM))

    seen: list[Any] = []
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]


# --- what an earlier run left ---


def test_only_what_a_run_left_is_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    make_room(out)
    with HistoryWriter(out) as writer:
        writer.append(0, "invoke", "poll")
    (out / "notes.txt").write_text("precious")
    with pytest.raises(ValueError, match=r"notes\.txt, which is not a run's"):
        make_room(out)
    assert (out / "history.jsonl").exists()
    (out / "notes.txt").unlink()
    make_room(out)
    assert not out.exists()


def test_a_mistyped_name_costs_nobody_an_earlier_run(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path) as writer:
        writer.append(0, "invoke", "poll")
    for changes in ({"driver": "x"}, {"workload": "x"}, {"faults": ("x",)}, {"duration_s": 0.1}):
        with pytest.raises(ValueError, match=r"is called|no room for a fault"):
            run(RunSettings(out=tmp_path, **changes), lambda *_: None)
    assert (tmp_path / "history.jsonl").exists()


# --- a full disk ---


def test_a_row_that_cannot_be_written_ends_the_history_there(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path)
    writer._file.close()
    writer._file = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115 - the writer closes it
    for _ in range(2):  # nothing is written after what may be half a line, and the reason stays
        with pytest.raises(OSError, match="No space left on device"):
            writer.append(0, "invoke", "poll")
    writer.close()
    assert not (tmp_path / "history.parquet").exists()


def test_a_disk_that_is_full_from_the_start_is_told_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        HistoryWriter(tmp_path)


class HalfFull:
    """A file that takes the first half of a row."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.closed = False

    def write(self, line: bytes) -> int:
        return int(self._file.write(line[: len(line) // 2]))

    def close(self) -> None:
        self._file.close()
        self.closed = True


def test_half_a_row_keeps_the_verdict_from_being_valid(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path)
    writer.append(0, "invoke", "poll")
    writer._file = HalfFull(writer._file)  # type: ignore[assignment]
    for _ in range(2):
        with pytest.raises(OSError, match="No space left on device"):
            writer.append(0, "ok", "poll")
    writer.close()
    verdict = check_history(read_history(tmp_path))
    assert verdict.valid == "unknown"
    assert "the last line of the history is cut off" in verdict.unknown_because


def test_a_run_that_is_cut_short_is_never_valid(tmp_path: Path) -> None:
    def cut_short() -> None:
        with HistoryWriter(tmp_path) as writer:
            for row in rows_of(History().sent(1).final((0, 1), end=1).ops):
                writer.write(row)
            raise KeyboardInterrupt  # Ctrl-C, although all was read

    with pytest.raises(KeyboardInterrupt):
        cut_short()
    assert (tmp_path / "history.parquet").exists()
    verdict = check_history(read_history(tmp_path))
    assert verdict.valid == "unknown"
    assert verdict.unknown_because == ["the history has no end row: it is unfinished"]


# --- the exit status ---


def test_our_bug_is_not_the_clusters_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    (tmp_path / "history.jsonl").write_text("")
    monkeypatch.setattr("quorumlog.chaos.verify.verify_history", broken)
    app = typer.Typer()
    app.command()(verify)
    result = CliRunner().invoke(app, [str(tmp_path), "--engine", "local"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "ZeroDivisionError" in result.stderr


def test_a_report_that_cannot_be_written_gives_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text("")
    app = typer.Typer()
    app.command()(verify)
    options = ["--engine", "local", "--json", "--report", str(tmp_path / "absent" / "r.html")]
    result = CliRunner().invoke(app, [str(tmp_path), *options])
    assert result.exit_code == 2
    assert json.loads(result.stdout)["valid"] == "unknown"


# --- the workload ---


class Late(LogInMemory):
    """A log whose `hidden` records appear when its end is asked for; a poll returns one record."""

    def __init__(self, *values: bytes) -> None:
        super().__init__()
        self.logs[0] += values
        self.hidden = [b"7"]
        self.answers = lambda _: False
        self.before_send: Callable[[], None] = lambda: None

    async def producer(self, bootstrap: str, client_id: str, *_: object) -> "LateClient":
        return LateClient(self)

    async def consumer(self, bootstrap: str, client_id: str) -> "LateClient":
        return LateClient(self)


class LateClient(Client):
    def __init__(self, log: Late) -> None:
        super().__init__(log)
        self._log = log

    async def send(
        self, topic: str, partition: int, value: bytes, **options: Any
    ) -> asyncio.Future[int]:
        self._log.before_send()
        return await super().send(topic, partition, value, **options)

    async def poll(self, timeout_ms: int) -> list[Record]:
        records = (await super().poll(timeout_ms))[:1]
        self._positions |= {record.partition: record.offset + 1 for record in records}
        return records

    async def end_offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        ends = await super().end_offsets(topic, partitions)
        self._log.logs[0] += self._log.hidden
        self._log.hidden = []
        return ends


def workload(log: Late, writer: HistoryWriter) -> AppendRead:
    setup = Setup(
        driver=log,
        bootstrap="b",
        topic="t",
        partitions=1,
        replication_factor=1,
        seed=1,
        options=LaneOptions(producers=2, consumers=1, final_readers=1),
        history=writer,
    )
    return AppendRead(setup)


def test_the_end_is_asked_for_after_all_was_read(tmp_path: Path) -> None:
    log = Late(b"5", b"6")
    with HistoryWriter(tmp_path) as writer:
        assert asyncio.run(workload(log, writer).final_reads(10.0))
    rows = read_history(tmp_path).to_pylist()
    ends = [row for row in rows if row["f"] == "final_end"]
    # Asked first, and the end was further on; asked again, and one more had come; then all is read.
    assert [row["type"] for row in ends] == ["fail", "fail", "ok"]
    assert [row["micro"][0]["offset"] for row in ends] == [2, 3, 3]
    assert [
        record["value"] for row in rows if row["f"] == "final_poll" for record in row["micro"]
    ] == [5, 6, 7]
    assert log.open == 0


async def test_what_is_cancelled_stays_open_and_its_clients_are_closed(tmp_path: Path) -> None:
    log = Late()

    async def work(writer: HistoryWriter) -> None:
        on = asyncio.Event()
        on.set()
        running = asyncio.create_task(workload(log, writer).work(on))
        while log.sent < 2:  # both producers wait for an answer that never comes
            await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.wait([running])

    with HistoryWriter(tmp_path) as writer:
        await work(writer)
    sends = [row for row in read_history(tmp_path).to_pylist() if row["f"] == "send"]
    assert [(row["type"], row["completed"]) for row in sends] == [("info", -1), ("info", -1)]
    assert log.open == 0


@pytest.mark.parametrize(("definite", "outcome"), [(True, "fail"), (False, "info")])
def test_only_a_definite_error_is_a_failure(tmp_path: Path, definite: bool, outcome: str) -> None:
    log = Late()
    on = asyncio.Event()

    def refuse() -> None:
        on.clear()
        raise SendFailed("no", definite=definite)

    log.before_send = refuse
    on.set()
    with HistoryWriter(tmp_path) as writer:
        asyncio.run(workload(log, writer).work(on))
    ended = [row for row in read_history(tmp_path).to_pylist() if row["f"] == "send"][-1]
    assert ended["type"] == outcome
    assert log.open == 0
