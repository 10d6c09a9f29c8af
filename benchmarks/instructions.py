"""User instructions of the usual requests, counted by valgrind, beside the last counts.

    python -m benchmarks.instructions [WORD ...]    only the cases whose name has one of the words

Unlike times, they are the same from run to run, however busy the machine is; the kernel is not
counted. Each case runs twice in a process of its own, once with few steps and once with many, and
the difference is the cost of the additional steps (benchmarks/counted.py). The counts are kept in
`instructions.json`, and their table in docs/benchmarks.md.
"""

import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks import counted, instructions_broker, instructions_client
from benchmarks.counted import FEW, MANY, Case

CASES: Final[dict[str, Case]] = {
    case.name: case for case in (*instructions_broker.CASES, *instructions_client.CASES)
}
FILE: Final = Path(__file__).with_suffix(".json")
PAGE: Final = Path(__file__).parent.parent / "docs/benchmarks.md"
HEAD: Final = "| counted | for each | user instructions |\n|---|---|---:|\n"
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a disk in memory
_TOOL: Final = (
    "valgrind",
    "--tool=cachegrind",
    "--cache-sim=no",
    "--cachegrind-out-file=/dev/null",
)


def table(counts: Mapping[str, int]) -> str:
    """Return the counts as Markdown."""
    rows = [f"| {name} | {CASES[name].unit} | {count:,} |\n" for name, count in counts.items()]
    return HEAD + "".join(rows)


async def _run(case: Case, directory: Path, steps: int) -> None:
    """Run a case, and end the process: its end is not to be counted."""
    is_right = await case.run(directory, steps)
    os._exit(0 if is_right else 1)


def _instructions(case: Case, steps: int, tool: Sequence[str] = _TOOL) -> int:
    """Return all instructions of a process that runs the case."""
    in_memory = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=in_memory) as directory, case.around(Path(directory)):
        words = ["-m", "benchmarks.instructions", "--run", case.name, directory, str(steps)]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        run = subprocess.run(
            [*tool, sys.executable, *words],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    if run.returncode:
        raise RuntimeError(f"{case.name}: exit status {run.returncode}\n{run.stderr[-2000:]}")
    lines = [line for line in run.stderr.splitlines() if "refs" in line]
    return int(lines[0].rpartition(":")[2].replace(",", "")) if lines else 0


def _count(case: Case) -> int:
    """Return the instructions of one unit."""
    _instructions(case, FEW, tool=())  # compiles the modules that it loads
    additional = _instructions(case, MANY) - _instructions(case, FEW)
    return round(additional / ((MANY - FEW) * case.per_step))


def _keep(counts: Mapping[str, int]) -> None:
    """Write the file, and the table of the page."""
    FILE.write_text(
        json.dumps({"python": platform.python_version(), "counts": counts}, indent=2) + "\n"
    )
    before, head, rest = PAGE.read_text().partition(HEAD)
    _, blank, after = rest.partition("\n\n")
    if not head or not blank:
        raise ValueError(f"{PAGE} has no table of instructions")
    PAGE.write_text(before + table(counts) + "\n" + after)


def main() -> None:
    """Count the named cases, or all; print the change of each and keep the counts."""
    words = sys.argv[1:]
    if words[:1] == ["--run"]:
        counted.take_all_the_time()
        asyncio.run(_run(CASES[words[1]], Path(words[2]), int(words[3])))
    if shutil.which("valgrind") is None:
        print("skipped: valgrind is not installed (Debian: apt install valgrind)")
        return
    last = json.loads(FILE.read_text())["counts"] if FILE.exists() else {}
    counts = {name: last[name] for name in CASES if name in last}
    for name, case in CASES.items():
        if not words or any(word in name for word in words):
            count = _count(case)
            change = f"{count / last[name] - 1:+.1%}" if name in last else "new"
            print(f"{name:72} {count:12,} per {case.unit:12} {change}", flush=True)
            counts[name] = count
            _keep({name: counts[name] for name in CASES if name in counts})


if __name__ == "__main__":
    main()
