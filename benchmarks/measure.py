"""What the operating system says of a process, and how figures are kept."""

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One row of the table. `goal` is a bound, `at_most` or at least; None: only to know."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    at_most: bool = True
    apache_kafka: str = ""  # its figure on a machine of this kind, where one was measured

    @property
    def verdict(self) -> str:
        """Say whether the goal is met."""
        if self.goal is None:
            return ""
        met = self.value <= self.goal if self.at_most else self.value >= self.goal
        return "met" if met else "MISSED"


@dataclass(slots=True)
class Table:
    """The figures of one run, in the order in which they were measured."""

    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, figure: Figure) -> None:
        """Keep a figure and show it at once: a benchmark is long."""
        self.figures.append(figure)
        print(
            f"  {figure.name:58} {figure.value:10.2f} {figure.unit:6} {figure.verdict}", flush=True
        )

    def note(self, text: str) -> None:
        """Keep a remark, such as a peer that is not there."""
        self.notes.append(text)
        print(f"  ({text})", flush=True)

    def markdown(self) -> str:
        """Return the table for a document."""
        lines = ["| figure | value | goal | | Apache Kafka |", "|---|---:|---:|---|---:|"]
        for figure in self.figures:
            sign = "" if figure.goal is None else ("<= " if figure.at_most else ">= ")
            goal = "" if figure.goal is None else f"{sign}{figure.goal:g}"
            lines.append(
                f"| {figure.name} | {figure.value:.2f} {figure.unit} | {goal} | {figure.verdict} "
                f"| {figure.apache_kafka} |"
            )
        return "\n".join([*lines, "", *(f"- {note}" for note in self.notes)])
