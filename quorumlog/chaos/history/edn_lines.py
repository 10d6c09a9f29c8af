"""Reads EDN of one form a line, as Jepsen prints histories, at the speed of Python's JSON reader.

Most lines have no more than maps, vectors, keywords, strings, numbers, booleans and nil. All such
lines become JSON by a few replacements in the whole text, a map as {"": [key, value, ...]}. The
complete reader (`edn`) reads each other line, and the whole text if a form spans lines. A line in
doubt goes to the complete reader, so the result never depends on the way: a test compares both.
"""

import json
import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from quorumlog.chaos.history.edn import EdnError, Form, plain_key, read_forms

_DEPTH_MAX: Final = 60  # of brackets in a line that becomes JSON; the complete reader has more
_ODD: Final = re.compile(r"[\x00-\x1f\\;]")  # in a line that JSON would read otherwise
_WORDS: Final = ("null", "NaN", "Infinity")  # symbols in EDN, constants in JSON
_KEYWORD: Final = re.compile(r":([A-Za-z][\w.*+!?/-]*)", re.ASCII)
_NIL: Final = re.compile(r"nil(?<![^\[{,\n]nil)(?![^\]},\n])")
_COMMAS: Final = re.compile(",,+")
_NOT_BRACKETS: Final = re.compile(r"[^\[\]{}]+")
_NAMES_MAX: Final = 64  # keywords, each with a pass over the text; more take one slow pass
_STEPS: Final = {"[": 1, "{": 1, "]": -1, "}": -1}
_VECTOR: Final = re.compile(r"\s*(?:\[.*\]|\(.*\))\s*\Z", re.DOTALL)
_END_IN_COMMENT: Final = re.compile(r";[^\n]*\s*\Z")
_TEXT: Final = "\x00"  # the place of a string


class LineForm(NamedTuple):
    """A form and its line, from 1. `is_plain`: it is as `edn.plain` returns it."""

    line: int
    value: Any
    is_plain: bool


def read_elements(text: str) -> list[LineForm]:
    """Return the forms of a text, or the elements of its only form if that is a list.

    Raises EdnError.
    """
    if _VECTOR.match(text) and not _END_IN_COMMENT.search(text, text.rstrip().rfind("\n") + 1):
        start, end = len(text) - len(text.lstrip()), len(text.rstrip())
        inside = f"{text[:start]} {text[start + 1 : end - 1]} {text[end:]}"
        if (elements := _by_line(inside, depth=1)) is not None:
            return elements
    elif (forms := _by_line(text, depth=0)) is not None:
        if len(forms) == 1 and isinstance(forms[0].value, list):
            return _elements_of(read_forms(text)[0])
        return forms
    found = read_forms(text)
    if len(found) == 1 and isinstance(found[0].value, list):
        return _elements_of(found[0])
    return [LineForm(form.line, form.value, is_plain=False) for form in found]


def _elements_of(form: Form) -> list[LineForm]:
    return [
        LineForm(line, value, is_plain=False)
        for line, value in zip(form.lines, form.value, strict=True)
    ]


def _by_line(text: str, *, depth: int) -> list[LineForm] | None:
    """Return the forms, at `depth`, of a text whose forms each lie in one line; else None."""
    lines = text.split("\n")
    simple = [n for n, line in enumerate(lines) if _is_simple(line)]
    written = _as_json([lines[n] for n in simple])
    decode = json.JSONDecoder(
        object_pairs_hook=_map_of, parse_constant=_refuse_constant, strict=False
    ).decode
    found: list[LineForm] = []
    at = 0
    for number, line in enumerate(lines, start=1):
        values: list[Any] | None = None
        if at < len(simple) and simple[at] == number - 1:
            try:
                values = decode(f"[{written[at]}]")
            except (ValueError, RecursionError):
                values = None
            at += 1
        if values is not None:
            found += [LineForm(number, value, is_plain=True) for value in values]
            continue
        try:
            forms = read_forms(line, depth=depth)
        except EdnError:
            return None
        found += [LineForm(number, form.value, is_plain=False) for form in forms]
    return found


def _is_simple(line: str) -> bool:
    """Return whether JSON, if it accepts the line at all, gives the same values."""
    line = line.rstrip("\r")
    return (
        not _ODD.search(line)
        and not any(word in line for word in _WORDS)
        and (line.count("[") + line.count("{") <= _DEPTH_MAX or _depth_of(line) <= _DEPTH_MAX)
    )


def _depth_of(line: str) -> int:
    steps = map(_STEPS.__getitem__, _NOT_BRACKETS.sub("", line))
    return max(accumulate(steps), default=0)


def _as_json(lines: Sequence[str]) -> list[str]:
    """Return each line as the inside of a JSON array. A malformed line stays malformed."""
    pieces = "\n".join(line.strip(" ,\r") for line in lines).split('"')
    code = _TEXT.join(pieces[::2])
    code = code.replace(", ", ",").replace(" ", ",")
    if ",," in code:
        code = _COMMAS.sub(",", code)
    for bracket in "[{":
        code = code.replace(f"{bracket},", bracket)
    for bracket in "]}":
        code = code.replace(f",{bracket}", bracket)
    code = _with_keywords(_NIL.sub("null", code))
    code = code.replace("{", '{"":[').replace("}", "]}")
    pieces[::2] = code.split(_TEXT)
    return '"'.join(pieces).split("\n")


def _with_keywords(code: str) -> str:
    """Return the code with keywords as JSON's texts, the longest first: one may begin another."""
    names = {*_KEYWORD.findall(code)}
    if len(names) > _NAMES_MAX:
        return _KEYWORD.sub(r'"\1"', code)
    for name in sorted(names, key=len, reverse=True):
        code = code.replace(f":{name}", f'"{name}"')
    return code


def _map_of(written: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the map of {"": [key, value, ...]}. Raises ValueError for a malformed map."""
    ((_, flat),) = written
    keys, values = flat[::2], flat[1::2]
    try:
        "".join(keys)
    except TypeError:  # keys that are no texts
        keys = [plain_key(key) for key in keys]
        if len({*keys}) != len(keys):
            raise ValueError("a key twice") from None
        keys = [str(key) for key in keys]
        return dict(zip(keys, values, strict=True))
    found = dict(zip(keys, values, strict=True))
    if len(found) != len(keys):
        raise ValueError("a key twice")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is a symbol in EDN")
