"""A progress bar of a long command, on a terminal alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(title: str, total: float) -> Iterator[Callable[[float], object]]:
    """Show a bar on stderr for the time of a block, which receives a function that moves it.

    The function takes the finished part of `total`. Without a terminal there is no
    bar, and nothing is imported for it.
    """
    import sys

    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda done: progress.update(task, completed=done)


@contextmanager
def progress_line() -> Iterator[Callable[[str], object]]:
    """Show a line on stderr for the time of a block, which receives a function that sets its text.

    Without a terminal there is no line, and nothing is imported for it.
    """
    import sys

    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update
