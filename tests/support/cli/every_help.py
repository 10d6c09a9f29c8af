"""Runs `--help` of every command, each as a user runs it; prints the commands, one a line.

It imports quorumlog and typer only, so that it also runs where nothing else is installed. A command
whose help cannot be printed ends it with a traceback or with the status of that command.
"""

import contextlib
import io
import sys
from collections.abc import Iterator
from typing import Any

from quorumlog.cli.main import COMMANDS, build_app, main


def every_command() -> Iterator[list[str]]:
    """Yield the words of each command and of each group of commands, the root first."""
    import typer.main

    yield []
    for name in COMMANDS:
        root: Any = typer.main.get_command(build_app([name]))
        yield from _below([name], root.commands[name])


def _below(words: list[str], command: Any) -> Iterator[list[str]]:
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from _below([*words, name], inner)


def show_help(words: list[str]) -> str:
    """Return the output of `quorumlog WORDS --help`. Raises RuntimeError if its status is not 0."""
    sys.argv = ["quorumlog", *words, "--help"]
    printed = io.StringIO()
    status: object = None
    with contextlib.redirect_stdout(printed):
        try:
            main()
        except SystemExit as ended:
            status = ended.code
    if status not in {0, None} or "Usage:" not in printed.getvalue():
        raise RuntimeError(f"{' '.join(sys.argv)}: status {status!r}: {printed.getvalue()}")
    return printed.getvalue()


if __name__ == "__main__":
    for words in every_command():
        show_help(words)
        print(" ".join(words))
