"""Prints the readers' items as they arrive: as lines, or as one JSON document."""

import json
from collections.abc import Callable
from typing import Any, Final, Protocol

from quorumlog.cli.dump.contents import Item, Problem

PROBLEMS_MAX: Final = 1000  # of one file, in the document; the others are counted
Write = Callable[[str], Any]


class Printer(Protocol):
    """Calls come in this order: `begin_file`, items and problems, `end_file`; at last, `end`."""

    def begin_file(self, path: str, kind: str | None, size: int | None, items_name: str) -> None:
        """Begin a file; unknown fields are None."""

    def item(self, item: Item) -> None:
        """Print a batch or an entry."""

    def problem(self, problem: Problem) -> None:
        """Print the problem, or keep it for the file's end."""

    def end_file(self) -> None:
        """Print the file's remaining output."""

    def end(self, skipped: list[str]) -> None:
        """End; `skipped`: files of directories whose kind is unknown."""


class TextPrinter:
    """A line for each file, item, record (`|`) and problem (`!`), as `name: value` pairs."""

    def __init__(self, write: Write) -> None:
        self._write: Final = write

    def begin_file(self, path: str, kind: str | None, size: int | None, items_name: str) -> None:  # noqa: ARG002, D102 - see Printer
        about = "" if kind is None else f": {kind}, {size} bytes"
        self._write(f"{_safe(path)}{about}\n")

    def item(self, item: Item) -> None:  # noqa: D102 - see Printer
        records = item.get("records", ())
        self._write(f"{_pairs({name: item[name] for name in item if name != 'records'})}\n")
        for record in records:
            decoded = record.get("decoded")
            if decoded is None:
                self._write(f"| {_pairs(record)}\n")
            else:
                at = {"offset": record["offset"], "timestamp_ms": record["timestamp_ms"]}
                self._write(f"| {_pairs(at | decoded)}\n")

    def problem(self, problem: Problem) -> None:  # noqa: D102 - see Printer
        at = "" if problem.position is None else f"byte {problem.position}: "
        self._write(f"! {at}{_safe(problem.what)}\n")

    def end_file(self) -> None:  # noqa: D102 - see Printer
        self._write("\n")

    def end(self, skipped: list[str]) -> None:
        """Do nothing: the command prints the number of skipped files on stderr."""


class JsonPrinter:
    """One document, written item by item; it keeps up to PROBLEMS_MAX problems of a file."""

    def __init__(self, write: Write) -> None:
        self._write: Final = write
        self._before_file = '{\n"files": ['
        self._before_item = ""
        self._problems: list[Problem] = []
        self._problems_of_file = self._problems_of_all = 0

    def begin_file(self, path: str, kind: str | None, size: int | None, items_name: str) -> None:  # noqa: D102 - see Printer
        about = json.dumps({"file": path, "kind": kind, "size": size})
        self._write(f'{self._before_file}\n{about[:-1]}, "{items_name}": [')
        self._before_file, self._before_item = ",", "\n"
        self._problems, self._problems_of_file = [], 0

    def item(self, item: Item) -> None:  # noqa: D102 - see Printer
        self._write(f"{self._before_item}{json.dumps(item)}")
        self._before_item = ",\n"

    def problem(self, problem: Problem) -> None:  # noqa: D102 - see Printer
        self._problems_of_file += 1
        self._problems_of_all += 1
        if len(self._problems) < PROBLEMS_MAX:
            self._problems.append(problem)

    def end_file(self) -> None:  # noqa: D102 - see Printer
        problems = [{"position": one.position, "problem": one.what} for one in self._problems]
        told = {"problems": problems, "problem_count": self._problems_of_file}
        self._write(f"], {json.dumps(told)[1:]}")

    def end(self, skipped: list[str]) -> None:
        """Write the end of the document."""
        if self._before_file != ",":
            self._write(self._before_file)
        told = {"skipped": skipped, "problem_count": self._problems_of_all}
        self._write(f"\n], {json.dumps(told)[1:]}\n")


def _pairs(item: Item) -> str:
    return " ".join(f"{name}: {_shown(value)}" for name, value in item.items())


def _shown(value: object) -> str:
    """Return a value in one line, without control characters of a terminal."""
    if value is None:
        return "-"
    if isinstance(value, str) and value.isascii() and value.isprintable() and value:
        return value
    if isinstance(value, str | list | dict | bool):
        return json.dumps(value)
    return str(value)


def _safe(text: str) -> str:
    return text if text.isascii() and text.isprintable() else json.dumps(text)
