"""How every command speaks: data on stdout, the rest on stderr, one table of exit statuses."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import typer

EXIT_VALID: Final = 0
EXIT_FAILED: Final = 1  # also: the verdict is invalid
EXIT_UNKNOWN: Final = 2
EXIT_USAGE: Final = 64
EXIT_INTERRUPTED: Final = 130


def say(text: str) -> None:
    """Tell the person at the terminal (stderr)."""
    typer.echo(text, err=True)


def data(text: str) -> None:
    """Print data (stdout)."""
    typer.echo(text)


def document(value: Any) -> None:
    """Print exactly one JSON document (stdout)."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def fail(message: str, status: int = EXIT_FAILED) -> NoReturn:
    """Say what is wrong in one line and end the command."""
    say(f"quorumlog: {message}")
    raise typer.Exit(status)


@contextmanager
def one_line_errors(*kinds: type[Exception], status: int = EXIT_FAILED) -> Iterator[None]:
    """Turn these errors into one line and an exit status: they are news, not bugs."""
    try:
        yield
    except kinds as error:
        fail(str(error) or type(error).__name__, status)


def parse_settings(settings: list[str]) -> dict[str, str]:
    """Read `name=value` arguments; end with a usage error for anything else."""
    parsed = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals or not name:
            fail(f"--config {text}: write it as name=value", EXIT_USAGE)
        parsed[name.strip()] = value.strip()
    return parsed
