"""Lasting conditions in a log: a line at the begin, a count once a minute, and a line at the end.

Otherwise, retries while a disk is full would fill the log, and the disk with it.
"""

import logging
from collections.abc import Hashable
from typing import Final

REPEAT_MS: Final = 60_000
TEXT_MAX: Final = 300  # characters of a peer's text in a line


def cut(text: str) -> str:
    """Return the text of a peer, at most TEXT_MAX characters: a name may have megabytes."""
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}... ({len(text)} characters)"


class LastingCondition:
    """One kind of condition, of several subjects: for example, the unwritable partitions.

    1. `note` writes a line when a subject begins, and one per minute for all that last.
    2. `end` writes a line when the last subject has ended.
    3. A subject that is not noted for two minutes is removed, without a line: so few are kept.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger: Final = logger
        self._noted_ms: Final[dict[Hashable, int]] = {}  # lasting subjects
        self._began_ms = self._wrote_ms = self._count = 0

    def __len__(self) -> int:
        """Return the number of lasting subjects."""
        return len(self._noted_ms)

    def lasts(self, subject: Hashable = "") -> bool:
        """Whether this subject was noted, and has not ended."""
        return subject in self._noted_ms

    def note(
        self,
        now_ms: int,
        text: str,
        subject: Hashable = "",
        *,
        failure: BaseException | None = None,
    ) -> None:
        """Record an occurrence of the condition; `text` describes it.

        With a `failure` the line is an error, and the first line of a subject has its traceback.
        """
        level = logging.WARNING if failure is None else logging.ERROR
        for old in [one for one, ms in self._noted_ms.items() if now_ms - ms >= 2 * REPEAT_MS]:
            del self._noted_ms[old]
        is_new = subject not in self._noted_ms
        if not self._noted_ms:
            self._began_ms = self._wrote_ms = now_ms
            self._count = 0
        self._noted_ms[subject] = now_ms
        self._count += 1
        if is_new:
            self._logger.log(level, "%s", text, exc_info=failure)
        elif now_ms - self._wrote_ms >= REPEAT_MS:
            seconds = (now_ms - self._began_ms) // 1000
            self._logger.log(level, "%s (%d times in %d s)", text, self._count, seconds)
            self._wrote_ms = now_ms

    def end(self, now_ms: int, text: str, subject: Hashable = "") -> None:
        """Record the end of the condition of this subject, if it lasted."""
        if self._noted_ms.pop(subject, None) is not None and not self._noted_ms:
            seconds = (now_ms - self._began_ms) // 1000
            self._logger.info("%s, after %d s and %d times", text, seconds, self._count)
