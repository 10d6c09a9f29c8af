"""Changes of one user's rights and password, each complete when every broker has it in force.

ACLs allow and deny, literal and prefixed. The password of number n has 4096 + n iterations, by
which a broker shows the password that it has. After a change of unknown outcome the user is given
up: a late request may still change its rights.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from quorumlog.chaos.history import UNKNOWN_OFFSET, HistoryWriter, Message
from quorumlog.client import Acl, AclFilter, Admin, KafkaError, NewScramCredential
from quorumlog.wire.codec.messages.describe_acls import DescribeAclsRequest
from quorumlog.wire.codec.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)

RIGHTS: Final[Mapping[str, int]] = {"read": 3, "write": 4}
"""The operations of ACLs that change, with their codes."""
_PATTERNS: Final[Mapping[str, int]] = {"literal": 3, "prefixed": 4}
_PERMISSIONS: Final[Mapping[str, int]] = {"deny": 2, "allow": 3}
_TOPIC: Final = 2
_ANY: Final = 1
MECHANISM: Final = "SCRAM-SHA-256"
_ITERATIONS: Final = 4096
_LOOK_S: Final = 0.05  # between two requests for the state of the brokers
_FAILED: Final = (KafkaError, ConnectionError, TimeoutError)


@dataclass(slots=True, eq=False)
class User:
    """A user, until a change of unknown outcome: `is_given_up`.

    password: the number of the password of new clients; 0: it has none. newest: the number of the
    newest password. acls: the ACLs that decide about a right to a topic.
    """

    name: str
    password: int = 0
    newest: int = 0
    is_given_up: bool = False
    acls: dict[tuple[str, str], frozenset[Acl]] = field(default_factory=dict)

    def text_of(self, number: int) -> str:
        """Return the password of this number."""
        return f"{self.name}-password-{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Administrator:
    """The administrator of one user; a process of the history by itself.

    brokers: all of them. session_ms: the lifetime of sessions; 0: no limit.
    """

    user: User
    admin: Admin
    process: int
    history: HistoryWriter
    topics: Sequence[str]
    brokers: Sequence[int]
    session_ms: int
    goes_on: Callable[[], bool]
    rng: random.Random

    async def begin(self) -> None:
        """Create the user, without a right to any topic.

        Some client libraries need a group to read, and the right to write idempotently before they
        write; without the latter, brokers look for a topic that the user may write to (KIP-679).
        """
        name = self.user.name
        free = [_grant(name, "read", "group", "*")]
        if self.rng.random() < 1 / 2:
            free.append(_grant(name, "idempotent_write", "cluster", "kafka-cluster"))
        try:
            await self.admin.create_acls(free)
        except _FAILED:
            self.user.is_given_up = True
            return
        none = [
            Message(f"{name}@{topic}", UNKNOWN_OFFSET, 0, f=f"allow_{right}")
            for topic in self.topics
            for right in RIGHTS
        ]
        self.history.append(self.process, "invoke", "access", none)
        self.history.append(self.process, "ok", "access", none)  # a new user name
        await self._set_password()

    async def change_on(self, gap_s: float, passwords: float) -> None:
        """Make one change after the other. `passwords`: the share that concerns the password."""
        while self.goes_on():
            await asyncio.sleep(self.rng.expovariate(1 / gap_s))
            if self.rng.random() < passwords:
                await self._change_password()
            else:
                await self._change_right(self.rng.choice(self.topics), self.rng.choice([*RIGHTS]))

    async def _change_right(self, topic: str, right: str) -> None:
        """Allow or deny, by other ACLs than before."""
        user = self.user
        before = user.acls.get((topic, right), frozenset())
        allows = not before or any(acl.permission == "deny" for acl in before)
        new = Acl(
            resource_type="topic",
            resource_name=topic,
            pattern_type=self.rng.choice([*_PATTERNS]),
            principal=f"User:{user.name}",
            operation=right,
            permission="allow" if allows else "deny",
        )
        denying = self.rng.choice([frozenset[Acl](), before | {new}])
        after = frozenset({new}) if allows else denying

        async def change() -> None:
            if after - before:
                await self.admin.create_acls(sorted(after - before))
            if before - after:
                await self.admin.delete_acls(_filter_of(acl) for acl in sorted(before - after))

        async def is_in_force(broker: int) -> bool:
            return await self._acls(broker, topic, right) == {_codes(acl) for acl in after}

        key = f"{user.name}@{topic}"
        messages = [Message(key, UNKNOWN_OFFSET, int(allows), f=f"allow_{right}")]
        await self._carry_out("access", messages, change, is_in_force)
        user.acls[topic, right] = after

    async def _acls(self, broker: int, topic: str, right: str) -> set[tuple[int, int]]:
        """Return the pattern types and permissions of the ACLs that a broker has."""
        response = await self.admin.request(
            DescribeAclsRequest(
                resource_type_filter=_TOPIC,
                resource_name_filter=topic,
                pattern_type_filter=_ANY,
                principal_filter=f"User:{self.user.name}",
                host_filter=None,
                operation=RIGHTS[right],
                permission_type=_ANY,
            ),
            broker_id=broker,
        )
        if response.error_code:
            raise ConnectionError(f"DescribeAcls of broker {broker}: error {response.error_code}")
        return {
            (resource.pattern_type, acl.permission_type)
            for resource in response.resources
            for acl in resource.acls
        }

    async def _change_password(self) -> None:
        """Set a new password, or delete the present one and set a new one a moment later."""
        if self.user.password and self.rng.random() < 1 / 3:
            await self._delete_password()
            await asyncio.sleep(self.rng.random())
        if not self.user.is_given_up:
            await self._set_password()

    async def _set_password(self) -> None:
        user = self.user
        user.newest += 1
        new = NewScramCredential(
            user=user.name,
            password=user.text_of(user.newest),
            mechanism=MECHANISM,
            iterations=_ITERATIONS + user.newest,
        )
        await self._replace_password(user.newest, self.admin.alter_user_scram_credentials([new]))

    async def _delete_password(self) -> None:
        deletion = (self.user.name, MECHANISM)
        await self._replace_password(
            0, self.admin.alter_user_scram_credentials(deletions=[deletion])
        )

    async def _replace_password(self, number: int, change: Awaitable[None]) -> None:
        async def is_in_force(broker: int) -> bool:
            found = await self._iterations(broker)
            return found == (_ITERATIONS + number if number else 0)

        async def once() -> None:
            await change

        name = self.user.name
        messages = [
            Message(name, UNKNOWN_OFFSET, number),
            Message(name, UNKNOWN_OFFSET, self.session_ms, f="session_ms"),
        ]
        await self._carry_out("password", messages, once, is_in_force)
        self.user.password = number

    async def _iterations(self, broker: int) -> int:
        """Return the iterations of the credential that a broker has; 0: it has none."""
        response = await self.admin.request(
            DescribeUserScramCredentialsRequest(users=[UserName(name=self.user.name)]),
            broker_id=broker,
        )
        if response.error_code:
            raise ConnectionError(f"broker {broker} has error {response.error_code}")
        found = [info.iterations for one in response.results for info in one.credential_infos]
        return max(found, default=0)

    async def _carry_out(
        self,
        f: str,
        messages: Sequence[Message],
        change: Callable[[], Awaitable[None]],
        is_in_force: Callable[[int], Awaitable[bool]],
    ) -> None:
        """Change, and wait for every broker; give the user up if the outcome is unknown."""
        self.history.append(self.process, "invoke", f, messages)
        try:
            await change()
            waiting = [*self.brokers]
            while waiting:
                if not self.goes_on():
                    raise TimeoutError("the clients stopped before every broker had the change")
                if await self._has(waiting[0], is_in_force):
                    del waiting[0]
                else:
                    await asyncio.sleep(_LOOK_S)
        except _FAILED as error:
            text = str(error) or type(error).__name__
            self.history.append(self.process, "info", f, messages, error=text)
            self.user.is_given_up = True
            return
        self.history.append(self.process, "ok", f, messages)

    async def _has(self, broker: int, is_in_force: Callable[[int], Awaitable[bool]]) -> bool:
        try:
            return await is_in_force(broker)
        except _FAILED:  # the broker is down or cut off: another attempt may succeed
            return False


def _grant(user: str, operation: str, resource_type: str, name: str) -> Acl:
    return Acl(
        resource_type=resource_type,
        resource_name=name,
        principal=f"User:{user}",
        operation=operation,
    )


def _codes(acl: Acl) -> tuple[int, int]:
    return _PATTERNS[acl.pattern_type], _PERMISSIONS[acl.permission]


def _filter_of(acl: Acl) -> AclFilter:
    return AclFilter(
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission=acl.permission,
    )
