"""A mutant of the source: a piece of text in a function, and its replacement."""

import difflib
from dataclasses import dataclass
from functools import cached_property

Position = tuple[int, int]  # line from 1, column from 0
Key = tuple[str, str, str, str, int]  # path, function, text before and after, occurrence


@dataclass(frozen=True)
class Mutant:
    """A replacement in one function of the product.

    `path` is relative to the root of the repository. `function` is the qualified name of the
    outermost function: its code object is replaced. `at_lines`: the lines whose execution shows
    that a test has to do with the mutant.
    """

    path: str
    function: str
    operator: str
    start: Position
    end: Position  # exclusive
    replacement: str
    source: str
    at_lines: range
    occurrence: int = 0  # among equal changes in the function

    @cached_property
    def mutated(self) -> str:
        """The source of the whole file with the replacement."""
        lines = self.source.splitlines(keepends=True)
        (first, column), (last, end_column) = self.start, self.end
        head = "".join(lines[: first - 1]) + lines[first - 1][:column]
        tail = lines[last - 1][end_column:] + "".join(lines[last:])
        return head + self.replacement + tail

    @cached_property
    def change(self) -> tuple[str, str]:
        """The changed lines before and after, as one line of words each."""
        (first, column), (last, end_column) = self.start, self.end
        lines = self.source.splitlines()[first - 1 : last]
        after = lines[0][:column] + self.replacement + lines[-1][end_column:]
        return " ".join(" ".join(lines).split()), " ".join(after.split())

    @property
    def key(self) -> Key:
        """The identity of the mutant, whatever the numbers of its lines are."""
        return (self.path, self.function, *self.change, self.occurrence)

    @property
    def diff(self) -> str:
        """The mutant as a unified diff with a line of context."""
        found = difflib.unified_diff(
            self.source.splitlines(), self.mutated.splitlines(), lineterm="", n=1
        )
        return "\n".join([*found][3:])

    @property
    def place(self) -> str:
        """The file, the line and the function."""
        return f"{self.path}:{self.start[0]} {self.function}"
