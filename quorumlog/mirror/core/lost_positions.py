"""Decides how to go on where the source no longer has the next record: reported, never silently.

Retention may delete records before they are copied. An unclean election may remove records that
were copied already: then the copies have more than the source, and new records of the source take
the same offsets.
"""

from typing import NamedTuple


class Resumption(NamedTuple):
    """Where to go on, and the sentence for a person."""

    offset: int
    message: str


def resume_after_loss(
    position: int, log_start: int, log_end: int, truncated_to: int | None
) -> Resumption:
    """Decide about a position that is not in the log [log_start, log_end).

    truncated_to: where the log diverges from the copied records, if its leader found that
    (KIP-320); `log_end` may be beyond the position by then.
    """
    end = log_end if truncated_to is None else min(truncated_to, log_end)
    if position < log_start:
        return Resumption(
            log_start,
            f"offsets {position} to {log_start - 1} were deleted at the source before they were"
            f" copied (retention, or deleted records): they are lost; goes on at {log_start}",
        )
    if position > end:
        return Resumption(
            max(end, log_start),
            f"the source lost offsets {end} to {position - 1} after they were copied (an unclean"
            f" election): the copies stay; goes on at {max(end, log_start)}",
        )
    return Resumption(position, f"offset {position} is in the log again; goes on there")
