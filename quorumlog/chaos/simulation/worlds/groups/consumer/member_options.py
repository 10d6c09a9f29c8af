"""What one member of a group does in a run."""

from typing import NamedTuple


class MemberOptions(NamedTuple):
    """What a member does.

    classic_share: of its lives that speak the classic protocol. begins_classic: the first one does.
    chooses_in_the_end: it subscribes anew after the last change of the topics.
    leaves_for_good: after that change.
    """

    commit_every_us: int
    is_static: bool
    classic_share: float
    begins_classic: bool
    chooses_in_the_end: bool
    leaves_for_good: bool
