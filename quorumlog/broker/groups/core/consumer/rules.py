"""The rules of the coordinators of consumer groups."""

from dataclasses import dataclass
from typing import Final

from quorumlog.broker.groups.core.consumer.classic_members import ClassicMembers
from quorumlog.broker.groups.core.consumer.heartbeats import Heartbeats
from quorumlog.broker.groups.core.consumer.member_deadlines import MemberDeadlines
from quorumlog.broker.groups.core.consumer.membership import Membership
from quorumlog.broker.groups.core.consumer.targets import Targets


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupRules:
    """The class of each rule."""

    membership: type[Membership] = Membership
    heartbeats: type[Heartbeats] = Heartbeats
    classic_members: type[ClassicMembers] = ClassicMembers
    targets: type[Targets] = Targets
    member_deadlines: type[MemberDeadlines] = MemberDeadlines


CONSUMER_GROUP_RULES: Final = ConsumerGroupRules()
