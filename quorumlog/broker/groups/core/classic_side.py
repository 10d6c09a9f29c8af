"""The classic groups of a coordinator, as its `ConsumerSide` uses them."""

from collections.abc import Callable
from typing import Final

from quorumlog.broker.groups.core.classic import ClassicProtocol
from quorumlog.broker.groups.core.group import Group
from quorumlog.broker.groups.core.requests import Join
from quorumlog.broker.groups.core.states import GroupState


class ClassicSide:
    """The classic groups of a coordinator, and their conversions from and to consumer groups."""

    def __init__(
        self,
        groups: dict[str, Group],
        protocol: ClassicProtocol,
        handle_join: Callable[[int, int, Join], None],
        max_size: int,
    ) -> None:
        self.groups: Final = groups
        self.handle_join: Final = handle_join
        self.max_size: Final = max_size
        self._protocol: Final = protocol

    def is_stable(self, group: Group) -> bool:
        """Whether all members of the group have their assignments."""
        return group.state is GroupState.STABLE

    def interrupt(self, group: Group, now_ms: int) -> None:
        """Answer waiting joins and syncs: members must join again, in either protocol."""
        if group.members:
            self._protocol.interrupt(group, now_ms)

    def continue_with(self, group: Group, now_ms: int) -> None:
        """Serve a former consumer group, whose members must join again."""
        self.groups[group.group_id] = group
        self._protocol.interrupt(group, now_ms)

    def continue_stable(self, group: Group, request_id: int) -> None:
        """Serve a former consumer group in its generation; answer the join of its leader."""
        self.groups[group.group_id] = group
        self._protocol.joining.answer_returning_leader(group, request_id)
