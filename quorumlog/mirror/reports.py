"""Reports of a mirror: one sentence for a person about a topic, a group or a cluster."""

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

_logger: Final = logging.getLogger(__name__)


class Report(NamedTuple):
    """An event. `is_loss`: records are missing, a topic stopped, or the mirror waits."""

    subject: str
    message: str
    is_loss: bool = False

    def __str__(self) -> str:
        return f"{self.subject}: {self.message}"


OnReport = Callable[[Report], None]


def log_report(report: Report) -> None:
    """Write the report to the log: the default."""
    _logger.log(logging.WARNING if report.is_loss else logging.INFO, "%s", report)
