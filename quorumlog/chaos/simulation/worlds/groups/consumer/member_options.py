"""The options of one group member in a run."""

from typing import NamedTuple


class MemberOptions(NamedTuple):
    """The options of a member.

    classic_share: the share of its lives with the classic protocol. begins_classic: in its first.
    chooses_in_the_end: it subscribes anew after the last change of the topics.
    leaves_for_good: it leaves for good after that change.
    """

    commit_every_us: int
    is_static: bool
    classic_share: float
    begins_classic: bool
    chooses_in_the_end: bool
    leaves_for_good: bool
