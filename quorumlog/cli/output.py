"""The output of every command: data on stdout, the rest on stderr, one table of exit statuses.

With --json, stdout holds exactly one document, also when the command fails: {"error": "..."}.
"""

import json
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import typer

EXIT_VALID: Final = 0
EXIT_FAILED: Final = 1  # or the verdict is invalid
EXIT_UNKNOWN: Final = 2
EXIT_NO_QUORUM: Final = 3  # of `status`: fewer than a majority of the voters answer
EXIT_USAGE: Final = 64
EXIT_INTERRUPTED: Final = 130


class _Answer:
    """The state of this command's JSON output."""

    def __init__(self) -> None:
        self.is_json = False
        self.is_given = False


_answer = _Answer()


def expect(arguments: list[str]) -> None:
    """Begin a run of the command line; `--json` among its options selects documents."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    _answer.is_json = "--json" in options
    _answer.is_given = False


def say(text: str) -> None:
    """Print a message for a person (stderr)."""
    typer.echo(text, err=True)


def data(text: str) -> None:
    """Print data (stdout)."""
    typer.echo(text)


def document(value: Any) -> None:
    """Print exactly one JSON document on stdout, and flush it: `up` runs on afterwards."""
    _answer.is_given = True
    sys.stdout.write(json.dumps(value, indent=2) + "\n")
    sys.stdout.flush()


def begin_document() -> Callable[[str], Any]:
    """Return the writer of stdout: from here on the caller writes the document in pieces.

    The pieces must form exactly one document.
    """
    _answer.is_given = True
    return sys.stdout.write


def outcome(value: Any, *lines: str, json: bool, empty: str = "") -> None:
    """Print `value` as the document, or `lines` without --json.

    `empty`: the message for a person if there are no lines.
    """
    if json:
        document(value)
        return
    for line in lines:
        data(line)
    if empty and not lines:
        say(empty)


def fail(message: str, status: int = EXIT_FAILED) -> NoReturn:
    """Print the error in one line and end the command; with --json, as a document, too."""
    say(f"quorumlog: {message}")
    document_error(message)
    raise typer.Exit(status)


def document_error(message: str) -> None:
    """With --json, print the error as the document, unless the command has printed another.

    The document is one line, because `consume --json` prints lines.
    """
    if _answer.is_json and not _answer.is_given:
        _answer.is_given = True
        sys.stdout.write(json.dumps({"error": message}) + "\n")


@contextmanager
def one_line_errors(*kinds: type[Exception], status: int = EXIT_FAILED) -> Iterator[None]:
    """Turn these expected errors into one line and an exit status."""
    try:
        yield
    except kinds as error:
        if isinstance(error, BrokenPipeError) and is_stdout_closed():
            raise  # `main` ends the command without a word
        fail(text_of(error), status)


def is_stdout_closed() -> bool:
    """Return whether the reader of stdout has closed its end, as `head` does."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


@contextmanager
def cluster_errors() -> Iterator[None]:
    """Turn an error of a directory's cluster into one line and an exit status."""
    from quorumlog.cluster.errors import ClusterError, InvalidArgument

    with (
        one_line_errors(ClusterError, OSError),
        one_line_errors(InvalidArgument, status=EXIT_USAGE),
    ):
        yield


def text_of(error: BaseException) -> str:
    """Return one line about an error; a file's name comes first."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def parse_settings(settings: list[str], option: str = "--config") -> dict[str, str]:
    """Read `NAME=VALUE` arguments; end with a usage error for anything else."""
    parsed = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            fail(f"{option} {text}: write it as NAME=VALUE", EXIT_USAGE)
        if name.strip() in parsed:
            fail(f"{option} {text}: {name.strip()} is given twice", EXIT_USAGE)
        parsed[name.strip()] = value.strip()
    return parsed


GAP = "  "


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table, its headers first; none without rows."""
    cells = [[_text(value) for value in row] for row in rows]
    if not cells:
        return []
    columns = list(zip(headers, *cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    is_number = [all(_is_number(text) for text in column[1:]) for column in columns]
    lines = []
    for row in [list(headers), *cells]:
        padded = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, is_number, strict=True)
        ]
        lines.append(GAP.join(padded).rstrip())
    return lines


def _text(value: object) -> str:
    return "-" if value is None or value == "" else str(value)


def _is_number(text: str) -> bool:
    return text == "-" or text.lstrip("-").isdecimal()
