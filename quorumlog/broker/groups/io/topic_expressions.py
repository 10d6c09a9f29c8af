"""Regular expressions matched by RE2, in linear time and bounded memory.

They match topic names, and in ListTransactions transactional ids.

Time is linear in the name's length times the size of the expression's program, which is limited.
The library is the extra `re2`: a broker without it refuses every expression, and names the extra.
The first expression loads it, in 3 ms: it takes 1.5 MB, and most brokers receive no expression.

docs/decisions/0032-group-threads.md
"""

from functools import cache
from typing import Any, Final

from quorumlog.broker.groups.core.consumer.topics import (
    InvalidRegularExpression,
    IsMatch,
    TopicMatcher,
)
from quorumlog.extras import install_command

MEMORY_BYTES_MAX: Final = 1 << 20  # of one compiled expression
# DEVIATION: Kafka has no limit. To match a name takes microseconds for a small program, 0.3 ms at
# this size, and much more above it.
# docs/decisions/0032-group-threads.md
PROGRAM_SIZE_MAX: Final = 2000  # instructions: about one for each character of `name|name|...`


@cache
def topic_matcher() -> TopicMatcher:
    """Return this process's matcher."""
    return Re2Matcher()


@cache
def _library() -> tuple[Any, Any]:
    """Load RE2; return its module and our options. Raises InvalidRegularExpression: no library."""
    try:
        import re2
    except ModuleNotFoundError:  # no wheel for this machine, or the extra is not installed
        command = install_command("re2")
        raise InvalidRegularExpression(f"this broker lacks google-re2: {command}") from None
    except (
        ImportError,
        OSError,
    ) as error:  # such as no free file handle: the next call may load it
        raise InvalidRegularExpression(f"this broker cannot load google-re2: {error}") from error
    options = re2.Options()
    options.max_mem = MEMORY_BYTES_MAX
    options.never_capture = True  # else each thread of a match copies all groups
    options.log_errors = False  # a client's mistake must not fill our log
    return re2, options


class Re2Matcher:
    """The TopicMatcher of RE2; without the library it refuses every expression."""

    def compile(self, expression: str) -> IsMatch:
        """Return a predicate that matches whole names. Raises InvalidRegularExpression."""
        re2, options = _library()
        try:
            pattern = re2.compile(expression, options)
        except re2.error as error:
            text = error.args[0] if error.args else "it is not one of RE2's"
            shown = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
            raise InvalidRegularExpression(shown) from error
        if pattern.programsize > PROGRAM_SIZE_MAX:
            size = f"{pattern.programsize} instructions, at most {PROGRAM_SIZE_MAX} are taken"
            raise InvalidRegularExpression(f"the expression is too large: {size}")

        def is_match(name: str) -> bool:
            return pattern.fullmatch(name) is not None

        return is_match
