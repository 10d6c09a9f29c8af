"""Decides as Apache Kafka's StandardAuthorizer (KIP-801), and remembers the decisions.

Super users may do everything. Without an ACL of a resource, `allow.everyone.if.no.acl.found`
decides; with one, only a matching ALLOW allows.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from quorumlog.broker.authorization.core.acl_index import OPERATIONS, AclIndex, Found, Subject
from quorumlog.metadata_quorum.image.acls import PermissionType
from quorumlog.metadata_quorum.image.records import AclBinding

CACHED_MAX: Final = 50_000  # decisions, about 15 MB
CACHED_CHARS_MAX: Final = 300  # of the names in a cached question: a client may send megabytes
_ANY_OF: Final = -1  # less a resource type: in a question about all resources of the type
_ANY_NAME: Final = "hardcode"  # Kafka's name of no particular resource, in a check of a type

Question = tuple[str, str, int, int, str]
"""Principal, host, operation, resource type, name: the codes are the protocol's."""

Writes = tuple[str, str, str, str | None]
"""Produce requests that are alike: principal, host, topic and transactional id."""


class Decision(NamedTuple):
    """The answer to a question. `rule`: the ACL, or Kafka's name of the rule, that decided."""

    is_allowed: bool
    rule: AclBinding | str


_SUPER_USER: Final = Decision(is_allowed=True, rule="SuperUser")
_DEFAULT_DENY: Final = Decision(is_allowed=False, rule="DefaultDeny")
_DEFAULT_ALLOW: Final = Decision(is_allowed=True, rule="DefaultAllow")


class Authorizer:
    """The decisions of one set of ACLs.

    Invariant: every cached decision is of `acls`; at most CACHED_MAX are cached, each with names of
    at most CACHED_CHARS_MAX characters. `permitted`: produce requests that may be written: they
    cost one look-up.
    """

    def __init__(
        self,
        *,
        super_users: Iterable[str] = (),
        allows_without_acl: bool = False,
        new_index: Callable[[Iterable[AclBinding]], AclIndex] = AclIndex,
    ) -> None:
        """Decide without ACLs, until `use`. `super_users`: principals, as type:name."""
        self._super_users: Final = frozenset(super_users)
        self._without_acl: Final = _DEFAULT_ALLOW if allows_without_acl else _DEFAULT_DENY
        self._new_index: Final = new_index
        self.acls: frozenset[AclBinding] = frozenset()
        self.permitted: set[Writes] = set()
        self._index = new_index(())
        self._cache: dict[Question, Decision] = {}
        self.version: object = object()
        """Another object after each change of the ACLs: decisions kept elsewhere are then void."""

    def use(self, acls: frozenset[AclBinding]) -> None:
        """Decide by these ACLs from now on. The same object again costs nothing."""
        if acls is self.acls:
            return
        is_changed, self.acls = acls != self.acls, acls
        if is_changed:
            self._index = self._new_index(acls)
            self._void()

    def decide(self, question: Question) -> Decision:
        """Return whether the principal may do the operation on the resource, and why."""
        decision = self._cache.get(question)
        if decision is None:
            decision = self._decide(question)
            self._keep(question, decision)
        return decision

    def may_on_any(self, principal: str, host: str, operation: int, resource_type: int) -> bool:
        """Whether the principal may do the operation on some resource of the type (KIP-679)."""
        if self.decide((principal, host, operation, resource_type, _ANY_NAME)).is_allowed:
            return True
        question = (principal, host, operation, _ANY_OF - resource_type, _ANY_NAME)
        decision = self._cache.get(question)
        if decision is None:  # it reads every ACL
            subject = Subject(principal, host)
            decision = Decision(self._index.allows_any(subject, operation, resource_type), "")
            self._keep(question, decision)
        return decision.is_allowed

    def authorized_operations(
        self, principal: str, host: str, resource_type: int, name: str
    ) -> int:
        """Return the bit field of the allowed operations: bit n is operation code n (KIP-430)."""
        return sum(
            1 << operation
            for operation in OPERATIONS[resource_type]
            if self.decide((principal, host, operation, resource_type, name)).is_allowed
        )

    def permit(self, writes: Writes) -> None:
        """Keep that these requests may be written, until the ACLs change."""
        if len(self.permitted) >= CACHED_MAX:
            self.permitted.clear()
        principal, _, topic, transactional_id = writes
        if _is_short(principal, topic, transactional_id or ""):
            self.permitted.add(writes)

    def _keep(self, question: Question, decision: Decision) -> None:
        if len(self._cache) >= CACHED_MAX:
            self._cache.clear()
        principal, _, _, _, name = question
        if _is_short(principal, name):
            self._cache[question] = decision

    def _void(self) -> None:
        self._cache, self.permitted = {}, set()
        self.version = object()

    def _decide(self, question: Question) -> Decision:
        principal, host, operation, resource_type, name = question
        if principal in self._super_users:
            return _SUPER_USER
        return self._judge(
            self._index.find(Subject(principal, host), operation, resource_type, name)
        )

    def _judge(self, found: Found) -> Decision:
        if found.rule is not None:
            return Decision(found.rule.permission_type == PermissionType.ALLOW, found.rule)
        return _DEFAULT_DENY if found.has_acls else self._without_acl


def _is_short(*names: str) -> bool:
    return sum(map(len, names)) <= CACHED_CHARS_MAX
