"""Tables for people: aligned columns, numbers on the right, "-" for a missing value."""

from collections.abc import Iterable, Sequence

GAP = "  "


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table, its headers first."""
    cells = [[_text(value) for value in row] for row in rows]
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
