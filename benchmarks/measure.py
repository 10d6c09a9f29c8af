"""What the operating system says of a process, and how figures are kept."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process, MB."""
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024
    command = ["ps", "-o", "rss=", "-p", str(pid)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(shown.stdout) / 1024


def parent_of(pid: int) -> int:
    """Return the process id of the parent; on Linux, else 1."""
    stat = Path(f"/proc/{pid}/stat")
    return int(stat.read_text().rpartition(")")[2].split()[1]) if stat.exists() else 1


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, user and system."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.exists():
        values = stat.read_text().rpartition(")")[2].split()
        return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")
    command = ["ps", "-o", "time=", "-p", str(pid)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    seconds = 0.0
    for part in shown.replace("-", ":").split(":"):
        seconds = seconds * 60 + float(part)
    return seconds


class Cost(NamedTuple):
    """The CPU of all nodes for one unit, such as a batch, microseconds."""

    cpu_us: float
    unit: str

    def __str__(self) -> str:
        return f", {self.cpu_us:,.0f} us/{self.unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One row of the table. `goal` is a bound, `at_most` or at least; None: only to know.

    beside: the same of Apache Kafka, by its column, such as "cold".
    load: the load average of the machine when it was measured.
    """

    name: str
    value: float
    unit: str
    goal: float | None = None
    at_most: bool = True
    cost: Cost | None = None
    beside: Mapping[str, "Figure"] = field(default_factory=dict)
    load: float = field(default_factory=lambda: os.getloadavg()[0])

    @property
    def verdict(self) -> str:
        """Return whether the goal is met."""
        if self.goal is None:
            return ""
        met = self.value <= self.goal if self.at_most else self.value >= self.goal
        return "met" if met else "MISSED"

    def document(self) -> dict[str, Any]:
        """Return the figure for JSON."""
        document = {
            **{"name": self.name, "value": self.value, "unit": self.unit, "goal": self.goal},
            **{"verdict": self.verdict, "load": self.load},
            "beside": {name: one.document() for name, one in self.beside.items()},
        }
        return document if self.cost is None else {**document, "cpu_us": self.cost.cpu_us}

    @property
    def text(self) -> str:
        """The value with its unit, and the CPU of all nodes."""
        return f"{self.value:,.2f} {self.unit}{self.cost or ''}"


@dataclass(slots=True)
class Table:
    """The figures of one run, in the order in which they were measured."""

    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, figure: Figure) -> None:
        """Keep a figure and print it at once: a benchmark is long."""
        self.figures.append(figure)
        others = "".join(f"  Kafka {name} {one.text}" for name, one in figure.beside.items())
        print(f"  {figure.name:58} {figure.text:>24} {figure.verdict}{others}", flush=True)

    def note(self, text: str) -> None:
        """Keep a remark, such as a peer that is not there."""
        if text not in self.notes:
            self.notes.append(text)
            print(f"  ({text})", flush=True)

    def markdown(self) -> str:
        """Return the table for a document. Columns of Apache Kafka are there if it was."""
        columns = sorted({name for figure in self.figures for name in figure.beside})
        heads = ["figure", "value", "goal", "", *(f"Apache Kafka, {name}" for name in columns)]
        lines = [
            _row([*heads, "load average"]),
            "|---|---:|---:|---|" + "---:|" * (len(columns) + 1),
        ]
        for figure in self.figures:
            sign = "" if figure.goal is None else ("<= " if figure.at_most else ">= ")
            goal = "" if figure.goal is None else f"{sign}{figure.goal:g}"
            others = [figure.beside[name].text if name in figure.beside else "" for name in columns]
            cells = [figure.name, figure.text, goal, figure.verdict, *others, f"{figure.load:.1f}"]
            lines.append(_row(cells))
        return "\n".join([*lines, "", *(f"- {note}" for note in self.notes)])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
