"""Pages of documentation that are run: what they show is what one sees.

A block marked `console` is a session. A line that begins with `$ ` is given to bash in one
directory per page, and the lines up to the next one are what it must print; progress is left out,
which is a bar, or how long a command still takes. Numbers and random identifiers may differ, as
they do from run to run; in a block marked `console exact` they may not. A line `...` stands for any
lines. A block marked `python` or `json` after a line that ends with a file's name and a colon is
written to that file.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

_FENCE = re.compile(r"^```([a-z ]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"`([\w.-]+)`:\n\n\Z")
_IDENTIFIER = re.compile(r"\b(?:[A-Za-z0-9_-]{22}|[0-9a-f]{32})(?![\w-])")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_SPACES = re.compile(r" {2,}")
_PROGRESS = re.compile("━| min to go;")
_LIMIT_S = 120


@dataclass
class Command:
    """One line behind `$ `, and what it must print."""

    line: str
    is_exact: bool
    expected: list[str] = field(default_factory=list)


@dataclass
class File:
    """A file that the page tells its reader to write."""

    name: str
    text: str


def steps(page: str) -> list[Command | File]:
    """Return what a reader of the page does, in order."""
    found: list[Command | File] = []
    for block in _FENCE.finditer(page):
        kind, text = block[1].strip(), block[2]
        name = _FILE_NAME.search(page[: block.start()])
        if kind in {"console", "console exact"}:
            found += _commands(text, is_exact=kind.endswith("exact"))
        elif name is not None:
            found.append(File(name[1], text))
    return found


def _commands(session: str, *, is_exact: bool) -> list[Command]:
    commands: list[Command] = []
    for line in session.splitlines():
        if line.startswith("$ "):
            commands.append(Command(line.removeprefix("$ "), is_exact))
        elif line:
            commands[-1].expected.append(line)
    return commands


class Reader:
    """Does what a page says, in `directory`. Clusters take free ports, whatever the page says."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._status = 0

    def follow(self, page: str) -> None:
        """Take every step. Raises AssertionError where the page is not true."""
        for step in steps(page):
            if isinstance(step, File):
                (self._directory / step.name).write_text(step.text)
            else:
                self._run(step)

    def _run(self, command: Command) -> None:
        is_question = command.line == "echo $?"
        assert is_question or self._status == 0, "the command before failed, and the page is silent"
        line = re.sub(r"^quorumlog up\b", "quorumlog up --port 0", command.line)
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", f"(exit {self._status}); {line}"],
            cwd=self._directory,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        self._status = done.returncode
        printed = [line for line in done.stdout.splitlines() if line and not _PROGRESS.search(line)]
        pattern = _pattern(command)
        text = "\n".join(printed if command.is_exact else map(_shape, printed))
        assert pattern.fullmatch(text), (
            f"$ {command.line}\nprinted\n{done.stdout}\ninstead of\n" + "\n".join(command.expected)
        )

    def stop(self) -> None:
        """Stop what the page left running."""
        for marker in self._directory.glob("**/cluster.json"):
            down = ["-m", "quorumlog", "down", "--dir", str(marker.parent)]
            subprocess.run([sys.executable, *down], check=False, capture_output=True, timeout=60)


def _shape(line: str) -> str:
    """Return the line without what differs from run to run."""
    return _SPACES.sub("  ", _NUMBER.sub("0", _IDENTIFIER.sub("ID", line)))


def _pattern(command: Command) -> re.Pattern[str]:
    lines = command.expected if command.is_exact else list(map(_shape, command.expected))
    parts = [r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n" for line in lines]
    pattern = "".join(parts)
    if not lines or lines[-1] != "...":
        pattern = pattern.removesuffix(r"\n")
    else:
        pattern = pattern.removesuffix(r"(?:.*\n)*?").removesuffix(r"\n") + r"(?:\n.*)*"
    return re.compile(pattern)
