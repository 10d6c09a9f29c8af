"""User instructions of the usual requests, counted by valgrind, beside the last counts.

    python -m benchmarks.instructions [WORD ...]    only the cases whose name has one of the words

Unlike times, they are the same from run to run, however busy the machine is; the kernel is not
counted. Each case runs twice in a forked process, once with few steps and once with many, and the
difference is the cost of the additional steps (benchmarks/counted.py): in Python alone, and with
the native lane. The counts are kept in `instructions.json`, and their table in docs/benchmarks.md.
"""

import asyncio
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks import (
    counted,
    instructions_broker,
    instructions_client,
    instructions_forwarder,
    instructions_rounds,
)
from benchmarks.counted import FEW, MANY, Case
from quorumlog.invariants import require
from quorumlog.native import VARIABLE
from quorumlog.native import lane as native

CASES: Final[dict[str, Case]] = {
    case.name: case
    for module in (
        instructions_broker,
        instructions_rounds,
        instructions_client,
        instructions_forwarder,
    )
    for case in module.CASES
}
FILE: Final = Path(__file__).with_suffix(".json")
PAGE: Final = Path(__file__).parent.parent / "docs/benchmarks.md"
HEAD: Final = "| counted | for each | in Python | with the native lane |\n|---|---|---:|---:|\n"
LANES: Final = ("python", "native")
_RUN: Final = "--run"
_COUNT: Final = re.compile(r"==(\d+)== I\s+refs:\s+([\d,]+)")
_TOOL: Final = (
    "valgrind",
    "--tool=cachegrind",
    "--cache-sim=no",
    "--cachegrind-out-file=/dev/null",
)


def table(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Return the counts as Markdown. `counts`: by lane, then by case."""
    plain, native = (counts[lane] for lane in LANES)
    rows = [
        f"| {name} | {CASES[name].unit} | {count:,} | {native.get(name, 0):,} |\n"
        for name, count in plain.items()
    ]
    return HEAD + "".join(rows)


async def _run(case: Case, directory: Path, steps: int) -> None:
    """Run a case, and end the process: its end is not to be counted."""
    is_right = await case.run(directory, steps)
    os._exit(0 if is_right else 1)


def _run_each(words: Sequence[str]) -> None:
    """Fork a process for each run, so that the modules are loaded once; print its id and status."""
    counted.take_all_the_time()
    for name, directory, steps in zip(words[::3], words[1::3], words[2::3], strict=True):
        pid = os.fork()
        if not pid:
            case = CASES[name]
            with asyncio.Runner(loop_factory=case.loop) as runner:
                runner.run(_run(case, Path(directory), int(steps)))
        _, status = os.waitpid(pid, 0)
        print(f"ended {pid} {os.waitstatus_to_exitcode(status)}", flush=True)


def instructions(
    cases: Sequence[Case], lane: str = "python", tool: Sequence[str] = _TOOL
) -> Iterator[tuple[Case, int]]:
    """Yield the instructions of a unit of each case; without a tool, 0. Raises RuntimeError."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", VARIABLE: str(int(lane == "native"))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    words = [*tool, sys.executable, "-m", __spec__.name, _RUN]
    with ExitStack() as stack:
        for case in cases:
            for steps in (FEW, MANY):
                directory = stack.enter_context(tempfile.TemporaryDirectory())
                stack.enter_context(case.around(Path(directory)))
                words += [case.name, directory, str(steps)]
        process = stack.enter_context(
            subprocess.Popen(
                words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
        output = _output_of(process)
        for case in cases:
            few, many = next(output), next(output)
            yield case, round((many - few) / ((MANY - FEW) * case.per_step))


def _output_of(process: "subprocess.Popen[str]") -> Iterator[int]:
    """Yield the instructions of each run, once it has ended. Raises RuntimeError if it failed."""
    counts: dict[str, int] = {}
    last: deque[str] = deque(maxlen=30)
    for line in process.stdout or ():
        last.append(line)
        if found := _COUNT.fullmatch(line.strip()):
            counts[found[1]] = int(found[2].replace(",", ""))
        elif line.startswith("ended"):
            _, pid, status = line.split()
            if status != "0":
                break
            yield counts.get(pid, 0)
    raise RuntimeError(f"a run failed:\n{''.join(last)}")


def _keep(counts: Mapping[str, Mapping[str, int]]) -> None:
    """Write the file, and the table of the page."""
    counts = {
        lane: {name: of_lane[name] for name in CASES if name in of_lane}
        for lane, of_lane in counts.items()
    }
    FILE.write_text(
        json.dumps({"python": platform.python_version(), "counts": counts}, indent=2) + "\n"
    )
    page, tables = re.subn(
        re.escape(HEAD) + r"(\|.*\n)*", lambda _: table(counts), PAGE.read_text()
    )
    require(tables == 1, f"{PAGE} has one table of instructions")
    PAGE.write_text(page)


def main() -> None:
    """Count the named cases, or all; print the change of each and keep the counts."""
    words = sys.argv[1:]
    if words[:1] == [_RUN]:
        _run_each(words[1:])
        return
    if shutil.which("valgrind") is None:
        print("skipped: valgrind is not installed (Debian: apt install valgrind)")
        return
    if native.functions is None:
        print(f"skipped: the native lane is to be counted, too: {native.why_not}")
        return
    counts = json.loads(FILE.read_text())["counts"] if FILE.exists() else {}
    cases = [
        case for case in CASES.values() if not words or any(map(case.name.__contains__, words))
    ]
    list(instructions(cases, tool=()))  # compiles the modules that the cases load
    for lane in LANES:
        of_lane = counts.setdefault(lane, {})
        print(f"{lane}:")
        for case, count in instructions(cases, lane):
            last = of_lane.get(case.name)
            change = "new" if last is None else f"{count / last - 1:+.1%}"
            print(f"{case.name:72} {count:12,} per {case.unit:12} {change}", flush=True)
            of_lane[case.name] = count
    _keep(counts)


if __name__ == "__main__":
    main()
