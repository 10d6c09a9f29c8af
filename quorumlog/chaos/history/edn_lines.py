"""Reads EDN of small forms, as Jepsen prints histories, at the speed of Python's JSON reader.

Most operations have no more than maps, vectors, keywords, strings, numbers, booleans and nil. All
such ones become JSON by a few replacements in the whole text, a map as {"": [key, value, ...]}. The
text is cut into blocks of lines, mostly of one line, where brackets balance. The complete reader
(`edn`) reads each other block, and the whole text if a form spans blocks. A block in doubt goes to
the complete reader, so the result never depends on the way: a test compares both.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from quorumlog.chaos.history.edn import EdnError, Form, plain_key, read_forms

_DEPTH_MAX: Final = 60  # of brackets in a block that becomes JSON; the complete reader has more
_LINES_MAX: Final = 256  # of a block
_ODD: Final = re.compile(r"[\x00-\x1f\\;]|null|NaN|Infinity")  # JSON would read it otherwise
_ODD_CODE: Final = re.compile(r'["\x00-\x09\x0b-\x1f\\;]|null|NaN|Infinity')
_CONTROL: Final = re.compile(r"[\x00-\x1f]")
_STRING: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPE: Final = re.compile(r"\\.")
_KEYWORD: Final = re.compile(r":([A-Za-z][\w.*+!?/-]*)", re.ASCII)
_NIL: Final = re.compile(r"nil(?<![^\[{,\n]nil)(?![^\]},\n])")
_COMMAS: Final = re.compile(",,+")
_NOT_BRACKETS: Final = re.compile(r"[^\[\]{}()]+")
_NAMES_MAX: Final = 64  # keywords, each with a pass over the text; more take one slow pass
_STEPS: Final = {"[": 1, "{": 1, "(": 1, "]": -1, "}": -1, ")": -1}
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
        if (elements := _by_block(inside, depth=1)) is not None:
            return elements
    elif (forms := _by_block(text, depth=0)) is not None:
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


def _by_block(text: str, *, depth: int) -> list[LineForm] | None:
    """Return the forms, at `depth`, of a text whose forms each lie in one block; else None."""
    blocks = _blocks_of(text)
    simple = [_simple(block) for _, block in blocks]
    written = iter(_as_json([one for one in simple if one is not None]))
    decode = json.JSONDecoder(
        object_pairs_hook=_map_of, parse_constant=_refuse_constant, strict=False
    ).decode
    found: list[LineForm] = []
    for (line, block), one in zip(blocks, simple, strict=True):
        values: list[Any] | None = None
        if one is not None:
            try:
                values = decode(f"[{next(written)}]")
            except (ValueError, RecursionError):
                values = None
        # In a block of several lines, only the first form certainly begins in the first line.
        if values is not None and (len(values) == 1 or "\n" not in block):
            found += [LineForm(line, value, is_plain=True) for value in values]
            continue
        try:
            forms = read_forms(block, depth=depth)
        except EdnError:
            return None
        found += [LineForm(line + form.line - 1, form.value, is_plain=False) for form in forms]
    return found


def _blocks_of(text: str) -> list[tuple[int, str]]:
    """Cut a text where the brackets of lines balance; return the first line of each block, too."""
    blocks: list[tuple[int, str]] = []
    begun: list[str] = []  # the lines of a block with open brackets
    balance = 0
    for number, line in enumerate(text.split("\n"), start=1):
        if line.count("[") != line.count("]") or line.count("{") != line.count("}"):
            balance += sum(_steps_of(_STRING.sub("", line)))
        if not begun and balance <= 0:
            blocks.append((number, line))
            balance = 0
            continue
        begun.append(line)
        if balance <= 0 or len(begun) == _LINES_MAX:
            blocks.append((number - len(begun) + 1, "\n".join(begun)))
            begun.clear()
            balance = 0
    if begun:
        blocks.append((text.count("\n") - len(begun) + 2, "\n".join(begun)))
    return blocks


def _simple(block: str) -> str | None:
    """Return a block as a line that JSON, if it accepts it at all, reads as EDN; or None."""
    block = block.rstrip("\r")
    if _ODD.search(block):
        pieces = _STRING.split(block.replace("\r\n", "\n"))
        if _ODD_CODE.search("".join(pieces[::2])) or _CONTROL.search("".join(pieces[1::2])):
            return None
        pieces[::2] = [code.replace("\n", " ") for code in pieces[::2]]
        pieces[1::2] = [_ESCAPE.sub(_without_quote, string) for string in pieces[1::2]]
        block = '"'.join(pieces)
    is_flat = block.count("[") + block.count("{") <= _DEPTH_MAX
    return block if is_flat or max(accumulate(_steps_of(block)), default=0) <= _DEPTH_MAX else None


def _without_quote(escape: re.Match[str]) -> str:
    """Return an escape of a string, so that each quote of a line bounds a string."""
    return "\\u0022" if escape.group() == '\\"' else escape.group()


def _steps_of(text: str) -> Iterator[int]:
    return map(_STEPS.__getitem__, _NOT_BRACKETS.sub("", text))


def _as_json(lines: Sequence[str]) -> list[str]:
    """Return lines of `_simple` as insides of JSON arrays. A malformed line stays malformed."""
    pieces = "\n".join(line.strip(" ,") for line in lines).split('"')
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
