"""The authorizer decides as a specification that reads every ACL; each planted bug is found.

The specification follows Kafka's StandardAuthorizer: docs/authorization.md.
"""

import random
from collections.abc import Callable, Iterable, Iterator

import pytest

from quorumlog.broker.authorization.core.acl_index import AclIndex, ByPrincipal, Found, Subject
from quorumlog.broker.authorization.core.authorizer import Authorizer
from quorumlog.metadata_quorum.image.acls import (
    AclOperation,
    AclResourceType,
    PatternType,
    PermissionType,
)
from quorumlog.metadata_quorum.image.records import AclBinding
from tests.support.sizes import tries

SETS = tries(2000)
QUESTIONS = 5  # of each set of ACLs
NAMES = ("a", "aa", "ab", "b", "ba", "*", "hardcode")
PRINCIPALS = ("User:a", "User:b", "User:*", "Group:a", "User:root")
HOSTS = ("*", "10.0.0.1", "10.0.0.2")
OPERATIONS = (
    AclOperation.ALL,
    AclOperation.READ,
    AclOperation.ALTER,
    AclOperation.CREATE,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
TYPES = (AclResourceType.TOPIC, AclResourceType.GROUP)
ROOT = "User:root"

Question = tuple[str, str, AclOperation, AclResourceType, str]
AuthorizerOf = Callable[[bool], Authorizer]


# --- The specification ---

IMPLYING = {
    AclOperation.DESCRIBE: ("READ", "WRITE", "DELETE", "ALTER"),
    AclOperation.DESCRIBE_CONFIGS: ("ALTER_CONFIGS",),
}


def covers(acl: AclBinding, kind: int, name: str) -> bool:
    if acl.resource_type != kind:
        return False
    if acl.pattern_type == PatternType.PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.resource_name in (name, "*")


def names(acl: AclBinding, principal: str, host: str) -> bool:
    return acl.principal in (principal, "User:*") and acl.host in (host, "*")


def is_about(acl: AclBinding, operation: AclOperation) -> bool:
    granted = AclOperation(acl.operation)
    if granted in (operation, AclOperation.ALL):
        return True
    allows = acl.permission_type == PermissionType.ALLOW
    return allows and granted.name in IMPLYING.get(operation, ())


def specified(acls: Iterable[AclBinding], question: Question, everyone: bool) -> bool:
    principal, host, operation, kind, name = question
    if principal == ROOT:
        return True
    of_resource = [acl for acl in acls if covers(acl, kind, name)]
    matching = [
        acl.permission_type
        for acl in of_resource
        if names(acl, principal, host) and is_about(acl, operation)
    ]
    if not matching:
        return everyone and not of_resource
    return PermissionType.DENY not in matching


def specified_for_any(acls: frozenset[AclBinding], question: Question, everyone: bool) -> bool:
    principal, host, operation, kind, _ = question
    if specified(acls, (principal, host, operation, kind, "hardcode"), everyone):
        return True
    mine = [
        acl
        for acl in acls
        if acl.resource_type == kind
        and names(acl, principal, host)
        and acl.operation in (operation, AclOperation.ALL)
    ]
    denied = [acl for acl in mine if acl.permission_type == PermissionType.DENY]

    def is_dominated(acl: AclBinding) -> bool:
        """Whether a DENY covers every resource that the ALLOW covers."""
        if any(
            one.pattern_type == PatternType.LITERAL and one.resource_name == "*" for one in denied
        ):
            return True
        if acl.pattern_type == PatternType.LITERAL and acl.resource_name == "*":
            return False
        return any(
            acl.resource_name.startswith(one.resource_name)
            if one.pattern_type == PatternType.PREFIXED
            else acl.pattern_type == one.pattern_type and acl.resource_name == one.resource_name
            for one in denied
        )

    return any(not is_dominated(acl) for acl in mine if acl.permission_type == PermissionType.ALLOW)


# --- Random sets and questions ---


def random_acl(draw: random.Random) -> AclBinding:
    return AclBinding(
        resource_type=draw.choice(TYPES),
        resource_name=draw.choice(NAMES),
        pattern_type=draw.choice((PatternType.LITERAL, PatternType.PREFIXED)),
        principal=draw.choice(PRINCIPALS),
        host=draw.choice(HOSTS),
        operation=draw.choice(OPERATIONS),
        permission_type=draw.choice((PermissionType.DENY, *[PermissionType.ALLOW] * 3)),
    )


def random_question(draw: random.Random) -> Question:
    return (
        draw.choice(PRINCIPALS),
        draw.choice(HOSTS[1:]),
        draw.choice(OPERATIONS[1:]),
        draw.choice(TYPES),
        draw.choice(NAMES),
    )


def disagreements(authorizer_of: AuthorizerOf, seed: int, sets: int) -> Iterator[str]:
    """Yield a line for each answer that differs from the specification.

    One authorizer gets one set after the other, so that a kept decision is found.
    """
    draw = random.Random(seed)
    authorizers = {everyone: authorizer_of(everyone) for everyone in (False, True)}
    acls: frozenset[AclBinding] = frozenset()
    asked: list[Question] = []
    for _ in range(sets):
        kept = draw.sample(sorted(acls), len(acls) // 2)
        acls = frozenset([*kept, *(random_acl(draw) for _ in range(draw.randrange(12)))])
        asked = [*asked[-2:], *(random_question(draw) for _ in range(QUESTIONS))]
        for everyone, authorizer in authorizers.items():
            authorizer.use(acls)
            for question in asked:
                answer = authorizer.decide(question).is_allowed
                if answer is not specified(acls, question, everyone):
                    yield f"{question}: {answer} by {sorted(acls)}, everyone={everyone}"
                principal, host, operation, kind, _ = question
                if principal == ROOT:
                    continue
                answer = authorizer.may_on_any(principal, host, operation, kind)
                if answer is not specified_for_any(acls, question, everyone):
                    yield f"any {question}: {answer} by {sorted(acls)}, everyone={everyone}"


@pytest.mark.parametrize("seed", range(3))
def test_the_authorizer_decides_as_specified(seed: int) -> None:
    def sound(everyone: bool) -> Authorizer:
        return Authorizer(super_users=[ROOT], allows_without_acl=everyone)

    assert next(disagreements(sound, seed, SETS), None) is None


# --- Planted bugs ---


class IgnoresDenials(AclIndex):
    def _of(self, entry: ByPrincipal, subject: Subject) -> Iterator[AclBinding]:
        mine = super()._of(entry, subject)
        return (acl for acl in mine if acl.permission_type == PermissionType.ALLOW)


class FindsPrefixesAnywhere(AclIndex):
    def _candidates(self, resource_type: int, name: str) -> Iterator[ByPrincipal]:
        yield from self._of_name(resource_type, name)
        for (kind, prefix), entry in self._prefixed.items():
            if kind == resource_type and prefix in name:
                yield entry

    def _of_name(self, resource_type: int, name: str) -> Iterator[ByPrincipal]:
        for literal in {name, "*"}:
            if (resource_type, literal) in self._literal:
                yield self._literal[resource_type, literal]


class ForgetsTheWildcard(AclIndex):
    def _candidates(self, resource_type: int, name: str) -> Iterator[ByPrincipal]:
        wild = self._literal.get((resource_type, "*"))
        return (one for one in super()._candidates(resource_type, name) if one is not wild)


class ImpliesDenials(AclIndex):
    def _covers(self, acl: AclBinding, operation: int) -> bool:
        allowing = AclBinding(
            **{
                name: getattr(acl, name)
                for name in AclBinding.__slots__
                if name != "permission_type"
            },
            permission_type=PermissionType.ALLOW,
        )
        return super()._covers(allowing, operation)


class IgnoresHosts(AclIndex):
    def _of(self, entry: ByPrincipal, subject: Subject) -> Iterator[AclBinding]:
        for principal in {subject.principal, "User:*"}:
            yield from entry.get(principal, ())


class ForgetsOtherPrincipals(AclIndex):
    """Says that a resource has no ACL if none is of the asking principal."""

    def find(self, subject: Subject, operation: int, resource_type: int, name: str) -> Found:
        found = super().find(subject, operation, resource_type, name)
        return Found(found.rule, has_acls=found.rule is not None)


class KeepsDecisions(Authorizer):
    def _void(self) -> None:
        """Keep the decisions by the ACLs before."""


def planted(index: type[AclIndex]) -> AuthorizerOf:
    return lambda everyone: Authorizer(
        super_users=[ROOT], allows_without_acl=everyone, new_index=index
    )


PLANTED: tuple[tuple[str, AuthorizerOf], ...] = (
    ("denials ignored", planted(IgnoresDenials)),
    ("a prefix anywhere in the name", planted(FindsPrefixesAnywhere)),
    ("no wildcard", planted(ForgetsTheWildcard)),
    ("a denial that implies others", planted(ImpliesDenials)),
    ("hosts ignored", planted(IgnoresHosts)),
    ("only ACLs of the principal count", planted(ForgetsOtherPrincipals)),
    (
        "decisions that outlive the ACLs",
        lambda everyone: KeepsDecisions(super_users=[ROOT], allows_without_acl=everyone),
    ),
)


@pytest.mark.parametrize(("bug", "authorizer_of"), PLANTED, ids=[bug for bug, _ in PLANTED])
def test_a_planted_bug_is_found(bug: str, authorizer_of: AuthorizerOf) -> None:
    assert next(disagreements(authorizer_of, 1, 500), None) is not None, bug
