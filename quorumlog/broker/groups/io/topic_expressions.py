"""Regular expressions by RE2, which takes linear time and little memory for any of them.

They are for names of topics, and ListTransactions has them for transactional ids.

Linear is in the length of a name, times the size of the expression's program, which has a limit.
The library is the extra `re2`: a broker without it refuses every expression, and names the extra.

docs/decisions/0122-expressions-of-topics-are-re2s.md
"""

from functools import cache
from typing import Final

from quorumlog.broker.groups.core.consumer.topics import (
    InvalidRegularExpression,
    IsMatch,
    NoExpressions,
    TopicMatcher,
)
from quorumlog.extras import install_command

try:
    import re2
except ImportError:  # no wheel for this machine, or the extra is not installed
    re2 = None

MEMORY_BYTES_MAX: Final = 1 << 20  # of one compiled expression
# DEVIATION: Kafka has no limit. An ordinary name takes microseconds, up to this size 0.3 ms, and
# beyond it much more.
# docs/decisions/0122-expressions-of-topics-are-re2s.md
PROGRAM_SIZE_MAX: Final = 2000  # instructions; as many characters of an alternation of names


@cache
def topic_matcher() -> TopicMatcher:
    """Return the matcher of this process: RE2's, or without the library, one that refuses."""
    if re2 is None:
        return NoExpressions(f"this broker lacks google-re2: {install_command('re2')}")
    return Re2Matcher()


class Re2Matcher:
    """A TopicMatcher."""

    def __init__(self) -> None:
        self._options: Final = re2.Options()
        self._options.max_mem = MEMORY_BYTES_MAX
        self._options.never_capture = True  # each thread of a match would copy all groups
        self._options.log_errors = False  # a client's mistake is no line of our log

    def compile(self, expression: str) -> IsMatch:
        """Return whether a whole name matches. Raises InvalidRegularExpression."""
        try:
            pattern = re2.compile(expression, self._options)
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
