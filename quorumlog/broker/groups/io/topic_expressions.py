"""Regular expressions by RE2, which takes linear time and little memory for any of them.

They are for names of topics, and ListTransactions has them for transactional ids.

docs/decisions/0122-expressions-of-topics-are-re2s.md
"""

from typing import Final

import re2

from quorumlog.broker.groups.core.consumer.topics import InvalidRegularExpression, IsMatch

MEMORY_BYTES_MAX: Final = 1 << 20  # of one compiled expression


class Re2Matcher:
    """A TopicMatcher."""

    def __init__(self) -> None:
        self._options: Final = re2.Options()
        self._options.max_mem = MEMORY_BYTES_MAX
        self._options.log_errors = False  # a client's mistake is no line of our log

    def compile(self, expression: str) -> IsMatch:
        """Return whether a whole name matches. Raises InvalidRegularExpression."""
        try:
            pattern = re2.compile(expression, self._options)
        except re2.error as error:
            text = error.args[0] if error.args else "it is not one of RE2's"
            shown = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
            raise InvalidRegularExpression(shown) from error

        def is_match(name: str) -> bool:
            return pattern.fullmatch(name) is not None

        return is_match
