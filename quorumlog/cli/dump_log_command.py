"""`quorumlog dump-log`: prints the files of a log directory, damaged files too."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Final

import typer

from quorumlog.cli.dump.contents import Asked, Item, Problem
from quorumlog.cli.dump.files import files_in, open_contents
from quorumlog.cli.dump.printers import JsonPrinter, Printer, TextPrinter
from quorumlog.cli.options import Json
from quorumlog.cli.output import (
    EXIT_FAILED,
    EXIT_UNKNOWN,
    EXIT_USAGE,
    begin_document,
    fail,
    say,
    text_of,
)


def dump_log(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="Files, or directories for all files below them."),
    ],
    offset: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Begin with the record at this offset.")
    ] = None,
    max_records: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Maximum number of records of each file.")
    ] = None,
    values: Annotated[bool, typer.Option("--values", help="Print the records' values.")] = False,
    batches: Annotated[
        bool, typer.Option("--batches", help="Print batches without their records.")
    ] = False,
    index_sanity: Annotated[
        bool,
        typer.Option(
            "--index-sanity", help="Compare indexes with their .log; print only differences."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Print the files of a log directory: segments, indexes, snapshots, checkpoints.

    The command prints valid items first, then each problem with its position. It decodes records
    of the metadata, of __consumer_offsets and of __transaction_state. A running node may have the
    files open: its last batch may be half written.

    Exit status 0: no problems; 1: a file has problems; 2: no file could be read.
    """
    if batches and (values or max_records is not None):
        fail("--batches prints no records: leave out --values and --max-records", EXIT_USAGE)
    asked = Asked(offset, max_records, not batches, values, index_sanity)
    printer: Printer = JsonPrinter(begin_document()) if json else TextPrinter(sys.stdout.write)
    dump = _Dump(printer, asked)
    for path in files:
        dump.add(path)
    printer.end(dump.skipped)
    if not json and dump.skipped:
        say(f"{len(dump.skipped)} other files are skipped")
    if dump.files_with_problems:
        say(f"{dump.files_with_problems} of {dump.files_told} files have problems")
        raise typer.Exit(EXIT_FAILED if dump.files_read else EXIT_UNKNOWN)


class _Dump:
    """Prints files, and counts the printed files, the readable ones and those with problems."""

    def __init__(self, printer: Printer, asked: Asked) -> None:
        self._printer: Final = printer
        self._asked: Final = asked
        self.skipped: Final[list[str]] = []
        self.files_told = self.files_read = self.files_with_problems = 0

    def add(self, path: Path) -> None:
        """Print a file, or all files below a directory whose kind is known."""
        if not path.is_dir():
            self._print(path)
            return
        told = self.files_told
        for file, is_known in files_in(path):
            if is_known:
                self._print(file)
            else:
                self.skipped.append(str(file))
        if self.files_told == told:
            self._refuse(path, "the directory has no files of a log directory")

    def _print(self, path: Path) -> None:
        with ExitStack() as opened:
            try:
                contents, size = open_contents(path, self._asked, opened)
            except (OSError, ValueError) as error:
                self._refuse(path, text_of(error))
                return
            self.files_read += 1
            self._printer.begin_file(str(path), contents.kind, size, contents.items_name)
            self._end_file(self._print_items(contents.items))

    def _print_items(self, items: Iterator[Item | Problem]) -> int:
        problems = 0
        for item in items:
            if isinstance(item, Problem):
                problems += 1
                self._printer.problem(item)
            else:
                self._printer.item(item)
        return problems

    def _refuse(self, path: Path, reason: str) -> None:
        self._printer.begin_file(str(path), None, None, "entries")
        self._printer.problem(Problem(None, reason))
        self._end_file(1)

    def _end_file(self, problems: int) -> None:
        self._printer.end_file()
        self.files_told += 1
        self.files_with_problems += problems > 0
