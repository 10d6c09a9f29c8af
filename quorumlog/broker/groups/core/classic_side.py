"""What the side of the consumer groups needs of the classic groups of the same coordinator."""

from collections.abc import Callable
from typing import Final

from quorumlog.broker.groups.core.classic import ClassicProtocol
from quorumlog.broker.groups.core.group import Group
from quorumlog.broker.groups.core.requests import Join
from quorumlog.broker.groups.core.states import GroupState


class ClassicSide:
    """The classic groups of the same coordinator, which become consumer groups and back."""

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
        """Answer what waits: members must join again, whatever becomes of the group."""
        if group.members:
            self._protocol.interrupt(group, now_ms)

    def continue_with(self, group: Group, now_ms: int) -> None:
        """Serve a group that was a consumer group; its members join again."""
        self.groups[group.group_id] = group
        self._protocol.interrupt(group, now_ms)

    def continue_stable(self, group: Group, request_id: int) -> None:
        """Serve a group that was a consumer group and keeps its generation; its leader joins."""
        self.groups[group.group_id] = group
        self._protocol.joining.answer_returning_leader(group, request_id)
