"""Stories of a replica that moves between log directories (KIP-113), as golden scripts.

`append`, `truncate`, `delete` and `crash` happen to the logs; `metadata` is the directory that the
committed metadata names. `step` compares both logs, does what the rules say to the copy, and shows
what follows. The logs are in memory: a list of leader epochs, and where it starts.
"""

from dataclasses import dataclass, field, fields
from pathlib import Path

import pytest

from quorumlog.broker.partitions.core.directory_moves import (
    AfterStep,
    CaughtUp,
    CopyFrom,
    CutTo,
    DirectoryMoveRules,
    LogView,
    StartAt,
    StartOver,
    Step,
)
from quorumlog.storage.core.leader_epochs import LeaderEpochs
from quorumlog.wire.codec.identifiers import Epoch, Offset
from tests.support import golden

CHUNK = 4  # records that one step copies at most


@dataclass
class MemoryLog:
    """A log from `start` on. `epochs`: that of each record."""

    start: int = 0
    epochs: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.start + len(self.epochs)

    def view(self) -> LogView:
        history = LeaderEpochs()
        for offset, epoch in enumerate(self.epochs, self.start):
            if epoch != history.latest_epoch:
                history = history.assigned(Epoch(epoch), Offset(offset))
        return LogView(Offset(self.start), Offset(self.end), history)

    def cut(self, end: int) -> None:
        del self.epochs[end - self.start :]

    def start_at(self, start: int) -> None:
        del self.epochs[: start - self.start]
        self.start = start

    def __str__(self) -> str:
        return f"[{self.start},{self.end}) epochs {','.join(map(str, self.epochs)) or 'none'}"


class Script:
    """A replica in directory a, which is to move to b."""

    def __init__(self) -> None:
        self.current, self.future = MemoryLog(), MemoryLog()
        self.named, self.is_announced = "a", False

    def run(self, command: str) -> str:
        name, *words = command.split()
        values = dict(word.split("=") for word in words)
        numbers = {key: int(text) for key, text in values.items() if text.isdigit()}
        match name:
            case "append":
                self.current.epochs += [numbers["epoch"]] * numbers["count"]
            case "truncate":
                self.current.cut(numbers["to"])
            case "delete":
                self.current.start_at(numbers["below"])
            case "crash":  # what was copied counts for nothing
                self.future, self.is_announced = MemoryLog(), False
            case "metadata":
                self.named = values["directory"]
            case "step":
                return self.step()
            case _:
                raise ValueError(name)
        return ""

    def step(self) -> str:
        rules = DirectoryMoveRules()
        step = rules.next_step(self.current.view(), self.future.view())
        read = self.read(step)
        ending = rules.ending(
            step,
            reaches_end=bool(read) and self.future.end + len(read) == self.current.end,
            is_announced=self.is_announced,
            is_named=self.named == "b",
        )
        if ending is not AfterStep.WAIT:  # what was read meanwhile is read again
            self.apply(step, read)
        if ending is AfterStep.ANNOUNCE:
            self.is_announced = True
        shown = " ".join(f"{one.name}={getattr(step, one.name)}" for one in fields(step))
        return f"{type(step).__name__} {shown}".rstrip() + f" => {ending.name}; copy {self.future}"

    def read(self, step: Step) -> list[int]:
        if not isinstance(step, CopyFrom):
            return []
        first = step.offset - self.current.start
        return self.current.epochs[first : first + CHUNK]

    def apply(self, step: Step, read: list[int]) -> None:
        """Do it to the copy."""
        match step:
            case StartOver(offset=offset):
                self.future = MemoryLog(offset)
            case CutTo(offset=offset):
                self.future.cut(offset)
            case StartAt(offset=offset):
                self.future.start_at(offset)
            case CopyFrom():
                self.future.epochs += read
            case CaughtUp():
                pass


@golden.scripts_beside(__file__)
def test_script(script: Path, request: pytest.FixtureRequest) -> None:
    golden.check(script, Script().run, request)
