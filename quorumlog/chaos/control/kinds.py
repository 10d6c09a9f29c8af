"""The types of the parameters of verbs: each checks JSON, reads the text of a URL, or of a shell.

Light: `quorumlog nemesis` imports it for every verb.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final


class Misuse(ValueError):
    """A request that no state of the cluster could fulfil. `hint`: how to correct it."""

    def __init__(self, error: str, hint: str) -> None:
        super().__init__(f"{error}; {hint}")
        self.error: Final = error
        self.hint: Final = hint


def once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict. Raises Misuse for a repeated name: no value wins silently."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise Misuse(f"{name} is given twice", f"give one {name}")
        found[name] = value
    return found


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of values. `noun` completes "X must be ...". `schema`: of JSON Schema.

    `fits` returns whether a value of JSON has the type. `read` turns text into a value, and raises
    ValueError.
    """

    noun: str
    schema: Mapping[str, Any]
    fits: Callable[[Any], bool]
    read: Callable[[str], Any]

    def checked(self, name: str, value: Any) -> Any:
        """Return the value. Raises Misuse if it has another type."""
        if not self.fits(value):
            shown = json.dumps(value)[:80]
            raise Misuse(f"{name} = {shown} has the wrong type", f"{name} must be {self.noun}")
        return value

    def from_text(self, name: str, text: str) -> Any:
        """Return the value that a text stands for. Raises Misuse."""
        try:
            return self.checked(name, self.read(text))
        except Misuse:
            raise
        except ValueError:
            raise Misuse(
                f"{name} = {text[:80]!r} is not valid", f"{name} must be {self.noun}"
            ) from None


def _is_id(value: Any) -> bool:
    return type(value) is int


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_id, value))


def _nodes_in(text: str) -> int | list[int]:
    numbers = [int(part) for part in text.split(",")]
    return numbers if len(numbers) > 1 else numbers[0]


def _target_in(text: str) -> int | str | list[int]:
    return _nodes_in(text) if text[:1].isdigit() else text


def _int_or_text(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


def _objects_in(text: str) -> Any:
    """Read a JSON array; `@FILE` names a file with it, and `-` is the standard input."""
    if text == "-":
        return json.load(sys.stdin)
    return json.loads(Path(text[1:]).read_text() if text.startswith("@") else text)


_IDS: Final = {"oneOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]}

TEXT: Final = Kind("a text", {"type": "string"}, lambda value: isinstance(value, str), str)
INTEGER: Final = Kind("a whole number", {"type": "integer"}, _is_id, int)
NUMBER: Final = Kind(
    "a number",
    {"type": "number"},
    lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    float,
)
NODES: Final = Kind(
    "the id of a node, or a list of ids",
    _IDS,
    lambda value: _is_id(value) or _are_ids(value),
    _nodes_in,
)
TARGET: Final = Kind(
    "a role, the id of a node, or a list of ids",
    {"oneOf": [{"type": "string"}, *_IDS["oneOf"]]},
    lambda value: isinstance(value, str) or NODES.fits(value),
    _target_in,
)
TEXT_OR_INTEGER: Final = Kind(
    "a text or a whole number",
    {"oneOf": [{"type": "string"}, {"type": "integer"}]},
    lambda value: isinstance(value, str) or _is_id(value),
    _int_or_text,
)
OBJECTS: Final = Kind(
    "a list of JSON objects",
    {"type": "array", "items": {"type": "object"}},
    lambda value: isinstance(value, list) and all(isinstance(one, dict) for one in value),
    _objects_in,
)
