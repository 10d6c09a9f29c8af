"""Writes the source of one function and compiles it, for encoders and decoders."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from quorumlog.invariants import require
from quorumlog.wire.codec.message import Message


class SourceWriter:
    """The source text of one function, and the names that it uses: `scope`, constants.

    The function is for one version of a message, which is `flexible` or not (KIP-482).
    Neighbouring values of fixed size are collected: one `struct.Struct` packs or unpacks them.
    """

    def __init__(
        self, message_class: type[Message], version: int, scope: Mapping[str, object]
    ) -> None:
        require(version in message_class.VERSIONS, f"{message_class.__name__} v{version} is known")
        self.message_class: Final = message_class
        self.version: Final = version
        self.flexible: Final = version >= message_class.FLEXIBLE_SINCE
        self._waiting: list[tuple[str, str]] = []
        self._lines: Final[list[str]] = []
        self._scope: Final[dict[str, Any]] = dict(scope)
        self._names = 0

    def emit(self, depth: int, line: str) -> None:
        """Add a line, indented `depth` times."""
        self._lines.append("    " * depth + line)

    def name(self, prefix: str) -> str:
        """Return a new name for a variable."""
        self._names += 1
        return f"{prefix}{self._names}"

    def constant(self, name: str, value: object) -> str:
        """Bind `name` to `value` in the function's scope; return the name."""
        self._scope[name] = value
        return name

    def fixed(self, format_: str, expression: str) -> None:
        """Collect a value of fixed size: its `struct` format, and its source or target."""
        self._waiting.append((format_, expression))

    def take_fixed(self) -> tuple[str, str]:
        """Return and clear the collected formats and expressions, joined; ("", "") without any."""
        waiting, self._waiting = self._waiting, []
        formats = "".join(format_ for format_, _ in waiting)
        return formats, ", ".join(expression for _, expression in waiting)

    def function(self, name: str) -> Callable[..., Any]:
        """Compile the text and return the function of this name; the text is its `__doc__`."""
        text = "\n".join(self._lines)
        filename = f"<{name} {self.message_class.__name__} v{self.version}>"
        exec(compile(text, filename, "exec"), self._scope)  # noqa: S102 - text that is made here
        compiled: Callable[..., Any] = self._scope[name]
        compiled.__doc__ = text
        return compiled
