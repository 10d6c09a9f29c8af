"""Members of groups of the classic protocol, in the world of a log.

The oracle of members has their rules: assignments are in the log, with one owner of each partition
in a generation, and former members commit nothing. In addition, once clients fall silent, their
groups become empty, and every request is answered (c).
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from quorumlog.broker.groups.core.group import Group, GroupState
from quorumlog.broker.groups.core.requests import (
    DeleteOffsets,
    JoinResult,
    Leave,
    LeavingMember,
    Request,
    Sync,
    SyncResult,
)
from quorumlog.broker.groups.core.rules import GROUP_RULES, GroupRules
from quorumlog.chaos.simulation.oracles.exchanges import SYNC_GROUP, Exchange
from quorumlog.client.core.group_protocol import encode_assignment
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.schemas import RequestHeader
from tests.support.groups.coordination import beat, join
from tests.support.groups.log_world import GROUPS, PARTITIONS, LogWorld, Loss

CLIENTS_MAX = 6


@dataclass
class Client:
    """The state of one client, in its own view. `members`: of the group that it leads."""

    group_id: str
    instance: str | None = None
    member_id: str = ""
    generation_id: int = -1
    members: tuple[str, ...] = ()


class MemberWorld(LogWorld):
    """`synced`: the number of assignments."""

    def __init__(
        self,
        seed: int,
        rules: GroupRules = GROUP_RULES,
        *,
        is_transactional: bool = False,
        has_strangers: bool = False,
    ) -> None:
        self.clients: list[Client] = []
        self.clients_of: dict[int, Client] = {}
        self.synced = 0
        self.has_strangers = has_strangers
        super().__init__(seed, rules, is_transactional=is_transactional)

    # --- Requests and responses ---

    def ask_as(self, client: Client, request: Request) -> None:
        self.clients_of[self.request_id + 1] = client
        self.ask(request)

    def hear(self, request_id: int, request: Any, result: object) -> None:
        super().hear(request_id, request, result)
        client = self.clients_of.pop(request_id, None)
        match result:
            case JoinResult() if client is not None:
                self.hear_join(client, result)
            case SyncResult(error_code=ErrorCode.NONE):
                self.synced += 1
                header = RequestHeader(SYNC_GROUP, 0, 1, "client")
                self.members_oracle.synced(Exchange(1, header, request, response=result))
            case _:  # an outcome that nothing follows from
                pass

    def hear_join(self, client: Client, result: JoinResult) -> None:
        if result.error_code in {ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED}:
            client.member_id = result.member_id
        if result.error_code is ErrorCode.NONE:
            client.generation_id = result.generation_id
            client.members = tuple(one.member_id for one in result.members)
        elif result.error_code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}:
            client.generation_id = -1

    def lead(self, start: int) -> None:
        super().lead(start)
        self.clients_of.clear()

    # --- Steps ---

    def some_client(self) -> Client | None:
        return self.random.choice(self.clients) if self.clients else None

    def start_client(self) -> None:
        if len(self.clients) < CLIENTS_MAX:
            instance = self.random.choice((None, None, "i", "j"))
            self.clients.append(Client(self.random.choice(GROUPS[:2]), instance))
            self.join(self.clients[-1])

    def join_again(self) -> None:
        client = self.some_client()
        if client is not None:
            self.join(client)

    def restart_client(self) -> None:
        """Start a second process of a client; the first one may have died, or run on."""
        client = self.some_client()
        if client is not None:
            if len(self.clients) >= CLIENTS_MAX or self.random.random() < 0.5:
                self.clients.remove(client)
            self.clients.append(Client(client.group_id, client.instance))
            self.join(self.clients[-1])

    def join(self, client: Client) -> None:
        self.names += 1
        request = join(
            client.member_id,
            group_id=client.group_id,
            new_member_id=f"m{self.names}",
            group_instance_id=client.instance,
            rebalance_timeout_ms=self.random.choice((300, 2000, 2000)),
            requires_known_member_id=True,
        )
        self.ask_as(client, request)

    def sync_any(self) -> None:
        client = self.some_client()
        if client is not None:
            self.sync(client)

    def sync(self, client: Client) -> None:
        request = Sync(
            group_id=client.group_id,
            member_id=client.member_id,
            generation_id=client.generation_id,
            group_instance_id=client.instance,
            assignments=self.shares(client.members),
        )
        self.ask_as(client, request)

    def shares(self, members: Collection[str]) -> dict[str, bytes]:
        """Return all partitions in shares of random members."""
        owners = [self.random.choice([*members]) for _ in PARTITIONS] if members else []
        owned = [*zip(owners, PARTITIONS, strict=False)]
        return {
            name: encode_assignment(where for owner, where in owned if owner == name)
            for name in members
        }

    def follow_the_protocol(self) -> None:
        """Without this, few schedules would reach a Stable group."""
        for client in self.clients * 2:  # who is new receives its member id first
            group = self.coordinator.groups.get(client.group_id)
            if group is None or client.generation_id < group.generation_id:
                self.join(client)
        self.let_time_pass(201)
        for client in self.clients:
            self.sync(client)
        while self.writes and self.random.random() < 0.9:
            self.end_write()

    def beat(self) -> None:
        client = self.some_client()
        if client is not None:
            request = beat(client.member_id, client.generation_id, client.instance)
            self.ask_as(client, replace(request, group_id=client.group_id))

    def commit_as_member(self) -> None:
        """Perhaps with the generation before: the client was slow, or its request was."""
        client = self.some_client()
        if client is None:
            return
        generation_id = max(client.generation_id - self.random.choice((0, 0, 0, 1)), -1)
        names_instance = self.random.random() < 0.5
        self.commit(
            client.member_id,
            generation_id,
            group_id=client.group_id,
            group_instance_id=client.instance if names_instance else None,
        )

    def leave(self) -> None:
        client = self.some_client()
        if client is not None:
            self.clients.remove(client)
            leaving = LeavingMember(member_id=client.member_id, group_instance_id=client.instance)
            self.ask_as(client, Leave(group_id=client.group_id, members=(leaving,)))

    def ask_as_a_stranger(self) -> None:
        """Send any request with any ids: it breaks no rule of the group."""
        choice, group_id = self.random.choice, self.random.choice(GROUPS)
        group = self.coordinator.groups.get(group_id) or Group(group_id)
        member_id = choice(("", "x", *group.members, *group.pending))
        instance, generation_id = choice((None, "i", "j")), self.random.randint(-1, 3)
        self.names += 1
        requests: list[Request] = [
            join(
                member_id,
                new_member_id=f"m{self.names}",
                group_instance_id=instance,
                requires_known_member_id=generation_id > 0,
                protocols=((choice(("range", "sticky")), b""), ("range", b"subscription")),
            ),
            beat(member_id, generation_id, instance),
            Sync(
                group_id="",
                member_id=member_id,
                generation_id=generation_id,
                group_instance_id=instance,
                assignments=self.shares(group.members),
            ),
            Leave(
                group_id="",
                members=(LeavingMember(member_id=member_id, group_instance_id=instance),),
            ),
            DeleteOffsets(group_id="", partitions=(PARTITIONS[0],)),
        ]
        self.ask(replace(choice(requests), group_id=group_id))

    def weights(self) -> dict[Callable[[], None], float]:
        weights = super().weights()
        often = self.random.choice((0, 1, 4))
        weights |= {
            self.start_client: 0.5 * often,
            self.join_again: 0.5 * often,
            self.restart_client: 0.2 * often,
            self.sync_any: 0.5 * often,
            self.follow_the_protocol: often,
            self.beat: 0.5 * often,
            self.commit_as_member: 2 * often,
            self.leave: 0.1 * often,
            self.ask_as_a_stranger: 0.5 * often * self.has_strangers,
        }
        return weights

    def settle(self) -> None:
        super().settle()
        for _ in range(5):  # nobody asks any more
            self.let_time_pass(300_000)
            while self.writes:
                self.end_write()
        for group in self.coordinator.groups.values():
            if group.state is not GroupState.EMPTY:
                raise Loss(f"c: {group.group_id} is {group.state}")
        if self.asked:
            raise Loss(f"c: {self.asked} are not answered")
