"""Pages of documentation that are run: their samples are the output of the commands.

A block marked `console` is a session. A line that begins with `$ ` is given to bash in one
directory per page, and the lines up to the next command are its output; progress is left out, which
is a bar, or how long a command still takes. So is the report of a client that has waited for some
seconds, unless the page has one: a busy machine shows it. Numbers and random identifiers may
differ, as they do from run to run; a verdict may name anomalies that its model allows, which a slow
machine shows and a fast one does not. In a block marked `console seeded` only elapsed times may
differ, in a block marked `console exact` nothing. A line `...`, indented or not, stands for any
lines. A block marked `python` or `json` after a line that ends with a file's name and a colon is
written to that file.

`python -m tests.support.pages docs/tutorial/4-break-a-rule.md` runs a page and replaces its samples
by the output of this run.
"""

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.support.cli.forked_commands import forking_program

_FENCE = re.compile(r"^```([a-z ]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"`([\w.-]+)`:\n\n\Z")
_IDENTIFIER = re.compile(r"\b(?:[A-Za-z0-9_-]{22}|[0-9a-f]{32})(?![\w-])")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_ELAPSED = re.compile(r"in \d+\.\d+ s \(\d+x\)")
_SPACES = re.compile(r" {2,}")
_PROGRESS = re.compile("━| min to go;")
_WAIT = re.compile(r" \(for \d+ s\)")
_ALLOWED_ANOMALY = re.compile(r"^  [\w-]+: \d+ \(allowed\b.*\n(?:    .*\n)*", re.MULTILINE)
_LIMIT_S = 120


@dataclass
class Command:
    """One line behind `$ `, its expected output, and where that is in the page (characters)."""

    line: str
    kind: str
    expected: list[str] = field(default_factory=list)
    begin: int = 0
    end: int = 0


@dataclass
class File:
    """A file that the reader of the page must write."""

    name: str
    text: str


def steps(page: str) -> list[Command | File]:
    """Return the steps of a reader of the page, in order."""
    found: list[Command | File] = []
    for block in _FENCE.finditer(page):
        kind, text = block[1].strip(), block[2]
        name = _FILE_NAME.search(page[: block.start()])
        if kind in {"console", "console seeded", "console exact"}:
            found += _commands(text, kind, block.start(2))
        elif name is not None:
            found.append(File(name[1], text))
    return found


def _commands(session: str, kind: str, position: int) -> list[Command]:
    commands: list[Command] = []
    for line in session.splitlines(keepends=True):
        position += len(line)
        if line.startswith("$ "):
            command = Command(line.strip().removeprefix("$ "), kind, begin=position, end=position)
            commands.append(command)
        else:
            commands[-1].expected += line.splitlines() if line.strip() else []
            commands[-1].end = position
    return commands


class Reader:
    """Follows a page in `directory`.

    Clusters take free ports, not the ports of the page. A reader that renews the samples takes the
    ports of the page, and allows other numbers in every block.
    """

    def __init__(self, directory: Path, *, renews: bool = False) -> None:
        self._directory = directory
        self._renews = renews
        self._status = 0

    def follow(self, page: str) -> str:
        """Take every step; return the page with the output of this run in its samples.

        Raises AssertionError where the page is not true.
        """
        renewed, copied = "", 0
        for step in steps(page):
            if isinstance(step, File):
                (self._directory / step.name).write_text(step.text)
                continue
            printed = self._run(step)
            lines = _seen(replace(step, kind="console") if self._renews else step, printed)
            assert lines is not None, (
                f"$ {step.line}\nprinted\n{printed}\ninstead of\n" + "\n".join(step.expected)
            )
            renewed += page[copied : step.begin] + "".join(f"{line}\n" for line in lines)
            copied = step.end
        return renewed + page[copied:]

    def _run(self, command: Command) -> str:
        is_question = command.line == "echo $?"
        assert is_question or self._status == 0, "the command before failed, and the page is silent"
        line = command.line
        if not self._renews:
            line = re.sub(r"^quorumlog up\b", "quorumlog up --port 0", line)
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", f"(exit {self._status}); {line}"],
            cwd=self._directory,
            env={**os.environ, "PATH": os.pathsep.join(map(str, self._programs()))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        self._status = done.returncode
        return done.stdout

    def _programs(self) -> list[object]:
        """Return the directories of programs. The forked `quorumlog` shows other elapsed times."""
        forking = [] if self._renews else [forking_program()]
        return [*forking, Path(sys.executable).parent, os.environ["PATH"]]

    def stop(self) -> None:
        """Stop the clusters that the page left running."""
        for marker in self._directory.glob("**/cluster.json"):
            down = ["-m", "quorumlog", "down", "--dir", str(marker.parent)]
            subprocess.run([sys.executable, *down], check=False, capture_output=True, timeout=60)


def _seen(command: Command, printed: str) -> list[str] | None:
    """Return the sample with the lines of this output, or None if they are others."""
    if command.kind == "console" and not any("(allowed" in line for line in command.expected):
        printed = _ALLOWED_ANOMALY.sub("", printed)
    has_waits = any(_WAIT.search(line) for line in command.expected)
    lines = [
        line
        for line in printed.splitlines()
        if line and not _PROGRESS.search(line) and (has_waits or not _WAIT.search(line))
    ]
    shapes = "".join(f"{_shape(line, command.kind)}\n" for line in lines)
    match = _pattern(command).fullmatch(shapes)
    if match is None:
        return None
    sample = []
    for index, line in enumerate(command.expected):
        at = shapes.count("\n", 0, match.start(index + 1))
        sample.append(line if _stands_for_any(line) else lines[at])
    return sample


def _shape(line: str, kind: str) -> str:
    """Return the line without the parts that differ from run to run."""
    if kind == "console exact":
        return line
    if kind == "console seeded":
        return _ELAPSED.sub("in 0 s", line)
    return _SPACES.sub("  ", _NUMBER.sub("0", _IDENTIFIER.sub("ID", line)))


def _pattern(command: Command) -> re.Pattern[str]:
    """Return the pattern of the output, with a group for each line of the sample."""
    return re.compile(
        "".join(
            r"((?:.*\n)*?)"
            if _stands_for_any(line)
            else f"({re.escape(_shape(line, command.kind))}\n)"
            for line in command.expected
        )
    )


def _stands_for_any(line: str) -> bool:
    return line.strip() == "..."


def main(pages: list[str]) -> None:
    """Replace the samples of the pages by the output of a run."""
    for name in pages:
        with tempfile.TemporaryDirectory() as directory:
            reader = Reader(Path(directory), renews=True)
            try:
                Path(name).write_text(reader.follow(Path(name).read_text()))
            finally:
                reader.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
