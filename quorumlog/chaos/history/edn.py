"""EDN, the notation of Clojure's data, in which Jepsen writes histories.

The reader accepts nil, booleans, numbers, Clojure's ratios and symbolic values, strings,
characters, keywords, symbols, lists, vectors, maps (with a namespace, too), sets, tags, comments
and discarded forms. Lists and vectors are lists, sets are `EdnSet`, a tagged form is `Tagged`; a
keyword is a `Keyword`, which is its name. Anything else is an EdnError with its line. Sources:
github.com/edn-format/edn; clojure.org/reference/reader.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

_DEPTH_MAX: Final = 64
_TOKEN: Final = re.compile(
    r"""
    (?P<blank>[\s,]+|;[^\n]*)
  | (?P<discard>\#_)
  | (?P<symbolic>\#\#(?:Inf|-Inf|NaN)(?![^\s,;"\\\[\](){}]))
  | (?P<namespace>\#:[A-Za-z][\w.*+!?$%&=<>-]*(?=[\s,]*\{))
  | (?P<set>\#\{)
  | (?P<open>[\[({])
  | (?P<close>[\])}])
  | (?P<text>"(?:[^"\\]|\\.)*")
  | (?P<character>\\(?:newline|return|space|tab|formfeed|backspace|u[0-9a-fA-F]{4}|o[0-7]{1,3}|.)
      (?![^\s,;"\\\[\](){}]))
  | (?P<tag>\#[A-Za-z][\w.*+!?$%&=<>/-]*)
  | (?P<atom>[^\s,;"\\\[\](){}]+)
    """,
    re.VERBOSE | re.DOTALL,
)
_INTEGER: Final = re.compile(r"[+-]?\d+N?\Z")
_RATIO: Final = re.compile(r"[+-]?\d+/\d+\Z")
_FLOAT: Final = re.compile(r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?M?\Z")
_NAME: Final = re.compile(r"[A-Za-z_.*+!?$%&=<>/\-][\w.*+!?$%&=<>:/'#-]*\Z")
_CLOSES: Final = {"[": "]", "(": ")", "{": "}", "#{": "}"}
_CHARACTERS: Final = {
    "newline": "\n",
    "return": "\r",
    "space": " ",
    "tab": "\t",
    "formfeed": "\f",
    "backspace": "\b",
}
_CONSTANTS: Final = {"nil": None, "true": True, "false": False}


class EdnError(ValueError):
    """Not EDN; `line` counts from 1."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line: Final = line


class Keyword(str):
    """`:name`, without the colon."""

    __slots__ = ()


class Ratio(str):
    """`1/2`, as a text in lowest terms: as floats, two ratios could be equal.

    Also `##Inf`, `##-Inf` and `##NaN`, which have no form in JSON.
    """

    __slots__ = ()


class EdnSet(list[Any]):
    """`#{...}`: its elements, in the order of the text."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """`#tag form`."""

    tag: str
    form: Any


@dataclass(frozen=True, slots=True)
class Form:
    """A form at the top level, its first line, and the lines of a list's elements."""

    line: int
    value: Any
    lines: tuple[int, ...]


def read_forms(text: str, *, depth: int = 0) -> list[Form]:
    """Return all forms of a text, which lie in `depth` others. Raises EdnError."""
    return _Reader(text).forms(depth)


class _Reader:
    """Reads forms one after the other, nested at most _DEPTH_MAX deep."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._lines: list[int] = []  # of the elements of the form at the top level

    def forms(self, depth: int) -> list[Form]:
        found = []
        while (token := self._next()) is not None:
            line = self._line
            if token[0] == "discard":
                self._form(self._undiscarded(depth), depth + 1)
            else:
                self._lines = []
                value = self._form(token, depth)
                found.append(Form(line, value, tuple(self._lines)))
        return found

    def _next(self) -> tuple[str, str] | None:
        """Return the kind and the text of the next token, or None at the end."""
        while self._at < len(self._text):
            match = _TOKEN.match(self._text, self._at)
            if match is None:
                raise EdnError(self._line, f"cannot read {self._text[self._at : self._at + 20]!r}")
            self._at, kind, words = match.end(), str(match.lastgroup), match.group()
            if kind != "blank":
                return kind, words
            self._line += words.count("\n")
        return None

    def _required(self) -> tuple[str, str]:
        token = self._next()
        if token is None:
            raise EdnError(self._line, "the text ends within a form")
        return token

    def _form(self, token: tuple[str, str], depth: int) -> Any:
        if depth > _DEPTH_MAX:
            raise EdnError(self._line, f"more than {_DEPTH_MAX} forms lie in each other")
        kind, words = token
        match kind:
            case "open" | "set":
                return self._collection(words, depth)
            case "namespace":
                return self._named_map(words[2:], depth)
            case "tag":
                return Tagged(words[1:], self._form(self._undiscarded(depth), depth + 1))
            case "close":
                raise EdnError(self._line, f"{words!r} has no opening bracket")
            case _:
                self._line += words.count("\n")
                return _scalar(kind, words, self._line)

    def _named_map(self, namespace: str, depth: int) -> Any:
        """Return a map whose keywords without a namespace get this one; `:_/a` becomes `:a`."""
        found = self._form(self._required(), depth)
        return {_qualified(namespace, key): value for key, value in found.items()}

    def _undiscarded(self, depth: int) -> tuple[str, str]:
        while (token := self._required())[0] == "discard":
            self._form(self._undiscarded(depth), depth + 1)
        return token

    def _collection(self, opening: str, depth: int) -> Any:
        closing, began = _CLOSES[opening], self._line
        elements: list[Any] = []
        while True:
            token = self._next()
            if token is None:
                raise EdnError(began, f"{opening!r} is never closed")
            if token == ("close", closing):
                break
            if token[0] == "discard":
                self._form(self._undiscarded(depth), depth + 1)
            else:
                if depth == 0:
                    self._lines.append(self._line)
                elements.append(self._form(token, depth + 1))
        if opening == "{":
            return self._map(elements)
        return EdnSet(elements) if opening == "#{" else elements

    def _map(self, elements: list[Any]) -> dict[Any, Any]:
        if len(elements) % 2:
            raise EdnError(self._line, "a map with a key and no value")
        keys = [plain_key(key) for key in elements[::2]]
        if len({*keys}) != len(keys):
            raise EdnError(self._line, "a map with one key twice")
        return dict(zip(keys, elements[1::2], strict=True))


def _scalar(kind: str, words: str, line: int) -> Any:
    match kind:
        case "text":
            return _text(words, line)
        case "character":
            return _character(words[1:])
        case "symbolic":
            return Ratio(words)
        case _:
            return _atom(words, line)


def _qualified(namespace: str, key: Any) -> Any:
    if not isinstance(key, Keyword):
        return key
    if key.startswith("_/"):
        return Keyword(key[2:])
    return key if "/" in key else Keyword(f"{namespace}/{key}")


def _character(name: str) -> str:
    if len(name) == 5 and name[0] == "u":
        return chr(int(name[1:], 16))
    if len(name) > 1 and name[0] == "o":
        return chr(int(name[1:], 8))
    return _CHARACTERS.get(name, name)


def plain_key(key: Any) -> Any:
    """Return a map's key if it is hashable, else its JSON."""
    return key if isinstance(key, str | int | float | None) else json.dumps(plain(key))


def _text(words: str, line: int) -> str:
    try:
        return str(json.loads(words.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")))
    except ValueError as error:
        raise EdnError(line, f"not a string: {words[:40]}") from error


def _atom(words: str, line: int) -> Any:
    if words in _CONSTANTS:
        return _CONSTANTS[words]
    if _INTEGER.match(words):
        return _integer(words.rstrip("N"), line)
    if _FLOAT.match(words):
        return float(words.rstrip("M"))
    if _RATIO.match(words):
        return _ratio(words, line)
    name = words[1:] if words.startswith(":") else words
    if not _NAME.match(name) and not (words.startswith(":") and re.match(r"[\w.-]+\Z", name)):
        raise EdnError(line, f"cannot read {words[:40]!r}")
    return Keyword(name) if words.startswith(":") else name


def _integer(words: str, line: int) -> int:
    try:
        return int(words)
    except ValueError as error:  # Python's limit
        raise EdnError(line, f"an integer of {len(words)} digits") from error


def _ratio(words: str, line: int) -> int | Ratio:
    try:
        said = Fraction(words)
    except ZeroDivisionError as error:
        raise EdnError(line, f"a ratio with denominator 0: {words[:40]}") from error
    return said.numerator if said.denominator == 1 else Ratio(said)


def plain(value: Any) -> Any:
    """Return a form as JSON has it: keywords as texts, sets as lists, a tag left out."""
    if isinstance(value, Tagged):
        return plain(value.form)
    if isinstance(value, Keyword | Ratio):
        return str(value)
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {str(plain_key(key)): plain(one) for key, one in value.items()}
    return value


def write_form(value: Any) -> str:
    """Return a value as EDN: JSON's types, and keywords."""
    for name, constant in _CONSTANTS.items():
        if value is constant:
            return name
    match value:
        case str():
            if isinstance(value, Ratio):
                return str(value)
            is_keyword = isinstance(value, Keyword)
            return f":{value}" if is_keyword else json.dumps(value, ensure_ascii=False)
        case dict():
            pairs = (f"{write_form(key)} {write_form(one)}" for key, one in value.items())
            return f"{{{', '.join(pairs)}}}"
        case list() | tuple():
            return f"[{' '.join(_written(value))}]"
        case _:
            return str(value)


def _written(values: Iterable[Any]) -> Iterable[str]:
    return (write_form(value) for value in values)
