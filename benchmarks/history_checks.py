"""How fast histories are checked, by each engine, and what that holds in memory.

Histories are made as they are checked: valid ones of producers that send one record each, readers
that poll what has come, and one final reader; `--register`: of 20 clients that write and read one
register. `python -m benchmarks.history_checks 1 3 10` takes millions of operations; `--engines
local,spark`, `--keys 12`; `--foreign` checks one of 10 MB as Jepsen prints it, in EDN and JSON. A
part of `make bench`, with small histories.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import Figure, Table, cpu_seconds
from quorumlog.chaos.history import read_history
from quorumlog.chaos.history.export import exported
from quorumlog.chaos.history.parquet import ROW_GROUP, row_groups_of, write_operations
from quorumlog.chaos.history.schema import MICRO, MODEL, OPERATIONS, facts_of

PROCESSES: Final = 8  # half of them send, half of them poll
OPEN: Final = 3  # operations begin while one is open; below PROCESSES
FINAL_POLL: Final = 500  # records
_STEP_NS: Final = 1000
MILLION: Final = 1_000_000
KEYS: Final = 12
_LOOK_S: Final = 0.2

Ints = npt.NDArray[np.int64]

CHECK: Final = """
import json, sys
from quorumlog.chaos.verify import verify_history
verdict = verify_history(sys.argv[1], engine=sys.argv[2])
print(json.dumps({"valid": verdict.valid, "operations": verdict.operations, "s": verdict.seconds}))
"""
REGISTER_CLIENTS: Final = 20


def write_history(file: Path, operations: int, keys: int) -> int:
    """Write a valid history of about that many operations; return how many micro-operations."""
    micro = 0
    with pq.ParquetWriter(file, OPERATIONS, compression="zstd") as writer:
        for table in _tables(operations, keys):
            micro += len(table.column("micro").combine_chunks().flatten())
            for group in row_groups_of(table):
                writer.write_table(group, row_group_size=ROW_GROUP)
        writer.add_key_value_metadata(facts_of())
    return micro


def _tables(operations: int, keys: int) -> Iterator[pa.Table]:
    for first in range(0, operations, ROW_GROUP):
        yield _working(np.arange(first, min(first + ROW_GROUP, operations)), operations, keys)
    yield from _final(operations, keys)


def _working(op: Ints, operations: int, keys: int) -> pa.Table:
    """Return operations: the even ones send, the odd ones poll what was acknowledged long ago."""
    sends, number = op % 2 == 0, op // 2
    turn = op // PROCESSES
    key = np.where(sends, number % keys, turn % keys)
    now = _there(op, key, keys)
    before = np.where(turn >= keys, _there(op - keys * PROCESSES, key, keys), 0)
    lengths = np.where(sends, 1, now - before)
    start = np.where(sends, number // keys, before)
    row = np.repeat(np.arange(len(op)), lengths)
    offset = start[row] + np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return _table(
        op,
        process=op % PROCESSES,
        f=np.where(sends, 0, 1),
        times=(op, 2 * op, 2 * (op + OPEN) + 1, operations),
        lengths=lengths,
        micro=(key[row], offset, offset * keys + key[row]),
    )


def _there(op: Ints, key: Ints, keys: int) -> Ints:
    """Return how many records of a key are acknowledged when an operation begins."""
    last = op // 2 - OPEN - 1
    return np.where(last >= key, (last - key) // keys + 1, 0)


def _final(operations: int, keys: int) -> Iterator[pa.Table]:
    """Return what one last process does: it reads all keys, and asks for their ends."""
    sent, at = (operations + 1) // 2, operations
    for key in range(keys):
        count = (sent - key + keys - 1) // keys
        starts = np.arange(0, count, FINAL_POLL)
        lengths = np.append(np.minimum(FINAL_POLL, count - starts), 1)
        offset = np.append(np.arange(count), count)
        value = np.append(np.arange(count) * keys + key, -1)
        op = at + np.arange(len(lengths))
        clock = 2 * operations + 2 * OPEN + 2 + 2 * (op - operations)
        yield _table(
            op,
            process=np.full(len(op), PROCESSES),
            f=np.append(np.full(len(starts), 2), 3),
            times=(2 * op - operations, clock, clock + 1, operations),
            lengths=lengths,
            micro=(np.full(len(offset), key), offset, value),
        )
        at += len(op)


def _table(
    op: Ints,
    *,
    process: Ints,
    f: Ints,
    times: tuple[Ints, Ints, Ints, int],
    lengths: Ints,
    micro: tuple[Ints, Ints, Ints],
) -> pa.Table:
    """Return rows; the events are numbered as their times are ordered."""
    _, begin, end, operations = times
    working = op < operations
    invoked = np.where(working, op + np.maximum(0, op - OPEN), 2 * op)
    completed = np.where(working, op + np.minimum(operations, op + OPEN + 1), 2 * op + 1)
    names = pa.array(["send", "poll", "final_poll", "final_end"])
    fs = pa.DictionaryArray.from_arrays(pa.array(f, pa.int32()), names).cast(pa.string())
    code, offset, value = micro
    topics = pa.array([f"bench-{number}" for number in range(int(code.max(initial=0)) + 1)])
    key = pa.DictionaryArray.from_arrays(pa.array(code, pa.int32()), topics).cast(pa.string())
    fields = [fs.take(pa.array(np.repeat(np.arange(len(op)), lengths))), key]
    fields += [pa.array(offset), pa.array(value), pa.array(np.full(len(code), ""))]
    fields.append(pa.array(np.zeros(len(code), np.int64)))  # no checksums
    flat = pa.StructArray.from_arrays(fields, fields=[*MICRO.value_type])
    bounds = pa.array(np.append(0, np.cumsum(lengths)), pa.int32())
    empty = pa.array(np.full(len(op), ""))
    columns: dict[str, Any] = {
        "index": op,
        "process": process,
        "f": fs,
        "type": pa.array(np.full(len(op), "ok")),
        "invoked_ns": begin * _STEP_NS,
        "completed_ns": end * _STEP_NS,
        "invoked": invoked,
        "completed": completed,
        "micro": pa.ListArray.from_arrays(bounds, flat),
        "error": empty,
        "node": empty,
        "details": empty,
    }
    return pa.table(columns, schema=OPERATIONS)


def write_register(file: Path, operations: int) -> int:
    """Write a valid history of one register: clients in turn, all of them always busy."""
    op = np.arange(operations)
    clients = min(REGISTER_CLIENTS, operations)
    begun = op + np.maximum(0, op - clients + 1)
    ended = op + np.minimum(operations, op + clients)
    writes = op % 2 == 0
    names = pa.array(["write", "read"])
    fs = pa.DictionaryArray.from_arrays(pa.array(np.where(writes, 0, 1), pa.int32()), names)
    fs, empty = fs.cast(pa.string()), pa.array(np.full(operations, ""))
    value = np.where(writes, op, op - 1)  # each takes effect as it begins
    no_checksums = np.zeros(operations, np.int64)
    flat = [fs, np.full(operations, "x"), np.full(operations, -1), value, empty, no_checksums]
    micro = pa.StructArray.from_arrays([pa.array(one) for one in flat], fields=[*MICRO.value_type])
    columns: dict[str, Any] = {
        "index": op,
        "process": op % clients,
        "f": fs,
        "type": pa.array(np.full(operations, "ok")),
        "invoked_ns": begun * _STEP_NS,
        "completed_ns": ended * _STEP_NS,
        "invoked": begun,
        "completed": ended,
        "micro": pa.ListArray.from_arrays(pa.array(np.arange(operations + 1), pa.int32()), micro),
        "error": empty,
        "node": empty,
        "details": empty,
    }
    table = pa.table(columns, schema=OPERATIONS)
    write_operations(table, file, facts_of() | {MODEL: b"register"})
    return operations


def write_as_others_do(file: Path, operations: int = 44_000) -> float:
    """Write a history of three keys as Jepsen does, by the suffix of the file; return its MB."""
    table = pa.concat_tables([*_tables(operations, 3)])
    with file.open("w", encoding="utf-8") as lines:
        for line in exported(table, "edn" if file.suffix == ".edn" else "jsonl"):
            lines.write(f"{line}\n")
    return file.stat().st_size / 1e6


def check(file: Path, engine: str) -> dict[str, Any]:
    """Check a history in a process of its own; return seconds, CPU seconds and the peak in GB."""
    started_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-c", CHECK, str(file), engine], stdout=subprocess.PIPE, text=True
    )
    use = _Use(process.pid)
    said, _ = process.communicate()
    wall_s = time.monotonic() - started_s
    use.stop()
    verdict: dict[str, Any] = json.loads(said.splitlines()[-1])
    return verdict | {"wall_s": wall_s, "cpu_s": use.cpu_s, "peak_gb": use.peak_bytes / 1e9}


class _Use:
    """Adds up what a process and all that it started use; what is less than a look is not seen."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0  # held at once
        self._pid, self._ended, self._cpu_s = pid, threading.Event(), dict[int, float]()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def cpu_s(self) -> float:
        return sum(self._cpu_s.values())

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_S):
            family = _family(self._pid)
            self.peak_bytes = max(self.peak_bytes, sum(map(_resident, family)))
            for pid in family:
                try:
                    self._cpu_s[pid] = cpu_seconds(pid)
                except (OSError, IndexError, subprocess.CalledProcessError):  # it has ended
                    continue


def _family(pid: int) -> list[int]:
    found, left = [], [pid]
    while left:
        one = left.pop()
        found.append(one)
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                left += map(int, task.read_text().split())
            except OSError:  # it has ended meanwhile
                continue
    return found


def _resident(pid: int) -> int:
    """Return the bytes of a process alone, without what it shares with others."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def history_checks(table: Table, operations: int = MILLION) -> None:
    """Measure what a check of each kind costs, in processes of their own."""
    with tempfile.TemporaryDirectory() as directory:
        register, log = Path(directory, "register.parquet"), Path(directory, "log.parquet")
        write_register(register, operations)
        write_history(log, operations, KEYS)
        for file, engine, goal in ((register, "local", 5.0), (log, "local", None)):
            done = check(file, engine)
            name = f"check of {operations / MILLION:g} M operations, {file.stem}: {engine}"
            table.add(Figure(name=name, value=done["wall_s"], unit="s", goal=goal))
            table.add(Figure(name="its memory at the peak", value=done["peak_gb"], unit="GB"))
        _foreign(table, Path(directory))


def _foreign(table: Table, directory: Path) -> None:
    """Measure the whole check of a history of 10 MB in other tools' formats."""
    files = directory / "history.jsonl", directory / "history.edn"
    sizes_mb = [write_as_others_do(file) for file in files]
    for file, size_mb in zip(files, sizes_mb, strict=True):
        done = check(file, "local")
        name = f"check of {size_mb:.0f} MB as Jepsen prints it, {file.suffix[1:]}"
        table.add(Figure(name=name, value=done["wall_s"], unit="s", goal=2.0))
        table.add(Figure(name="its CPU time", value=done["cpu_s"], unit="s"))
        ratio = _seconds_of(read_history, file) / _seconds_of(_parsed, file)
        table.add(Figure(name="reading it, to json.loads of its lines", value=ratio, unit="times"))


def _seconds_of(read: Callable[[Path], Any], file: Path) -> float:
    started_s = time.process_time()
    read(file)
    return time.process_time() - started_s


def _parsed(file: Path) -> list[Any]:
    """Parse the same history in JSON, without collections of garbage."""
    lines = file.with_suffix(".jsonl").read_bytes().splitlines()
    gc.disable()
    try:
        return [json.loads(line) for line in lines]
    finally:
        gc.enable()


def main() -> None:
    """Print one line for each size and engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("millions", type=float, nargs="*", default=[1.0, 3.0])
    parser.add_argument("--engines", default="local,spark")
    parser.add_argument("--keys", type=int, default=KEYS)
    parser.add_argument("--register", action="store_true")
    parser.add_argument("--foreign", action="store_true")
    parser.add_argument("--directory", type=Path, default=None)
    given = parser.parse_args()
    print(f"{os.cpu_count()} cores; load {os.getloadavg()[0]:.1f}; {given.keys} keys", flush=True)
    if given.foreign:
        with tempfile.TemporaryDirectory(dir=given.directory) as directory:
            _foreign(Table(), Path(directory))
        return
    for millions in given.millions:
        with tempfile.TemporaryDirectory(dir=given.directory) as directory:
            file, operations = Path(directory, "history.parquet"), int(millions * MILLION)
            if given.register:
                micro = write_register(file, operations)
            else:
                micro = write_history(file, operations, given.keys)
            size_mb = file.stat().st_size / 1e6
            print(f"{millions:g} M operations, {micro / 1e6:.1f} M messages, {size_mb:.0f} MB")
            for engine in given.engines.split(","):
                done = check(file, engine)
                print(
                    f"  {engine:8} valid {done['valid']}  wall {done['wall_s']:6.1f} s  "
                    f"CPU {done['cpu_s']:6.1f} s  peak {done['peak_gb']:5.2f} GB",
                    flush=True,
                )


if __name__ == "__main__":
    main()
