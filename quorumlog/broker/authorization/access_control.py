"""The authorizer of a broker: it decides by the newest image, counts, and writes the audit log.

The audit log is the logger `kafka.authorizer.logger`: denials at INFO, allowed operations at DEBUG,
in the words of Apache Kafka.

# DEVIATION: Kafka writes a line for every decision. A client that repeats a refused request would
# fill the disk: equal lines are written once a second, and of each of PRINCIPALS_MAX principals at
# most LINES_MAX different lines: a principal with many refusals does not hide those of another.
# docs/decisions/0060-authorization.md
"""

import ipaddress
import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from quorumlog.broker.authorization.core.authorizer import Authorizer, Decision, Question, Writes
from quorumlog.broker.settings import BrokerSettings
from quorumlog.clock import monotonic_s
from quorumlog.lasting_condition import cut
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.metadata_quorum.image.acls import (
    AclOperation,
    AclResourceType,
    PatternType,
    PermissionType,
)
from quorumlog.metadata_quorum.image.records import AclBinding
from quorumlog.settings.authorization import super_users

LINES_MAX: Final = 100  # different lines of the audit log in a second, of one principal
PRINCIPALS_MAX: Final = 10  # with lines in a second
_logger: Final = logging.getLogger("kafka.authorizer.logger")
_RESOURCE_TITLES: Final = {
    AclResourceType.TOPIC: "Topic",
    AclResourceType.GROUP: "Group",
    AclResourceType.CLUSTER: "Cluster",
    AclResourceType.TRANSACTIONAL_ID: "TransactionalId",
    AclResourceType.DELEGATION_TOKEN: "DelegationToken",
    AclResourceType.USER: "User",
}


@lru_cache(maxsize=1024)
def host_of(client_host: str) -> str:
    """Return the text that ACLs compare: the address as Java writes it, without a slash.

    Java writes all eight groups of an IPv6 address, and an IPv4 address that is mapped as IPv4.
    """
    text = client_host.removeprefix("/").partition("%")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text  # a connection without an address: no ACL of a host concerns it
    if isinstance(address, ipaddress.IPv4Address):
        return text
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return ":".join(f"{int(group, 16):x}" for group in address.exploded.split(":"))


class AccessControl:
    """The authorizer of one broker. `allowed`, `denied`: the numbers of its decisions."""

    def __init__(self, authorizer: Authorizer, image: Callable[[], ClusterImage]) -> None:
        self.authorizer: Final = authorizer
        self.allowed = self.denied = 0
        self._image: Final = image
        self._second = 0
        self._lines: Final[dict[str, set[tuple[Question, str, bool]]]] = {}
        """The lines of this second, by principal."""
        self._left_out = 0

    def may(
        self,
        principal: str,
        client_host: str,
        operation: AclOperation,
        resource_type: AclResourceType,
        name: str,
        *,
        api: str,
        log_denied: bool,
    ) -> bool:
        """Whether the principal may do the operation now. `api`: Kafka's name of the request."""
        authorizer = self.authorizer
        authorizer.use(self._image().access.acls)
        question = (principal, host_of(client_host), operation, resource_type, name)
        decision = authorizer.decide(question)
        if decision.is_allowed:
            self.allowed += 1
            if _logger.isEnabledFor(logging.DEBUG):
                self._write(logging.DEBUG, question, decision, api)
        else:
            self.denied += 1
            if log_denied:
                self._write(logging.INFO, question, decision, api)
        return decision.is_allowed

    def is_permitted(self, writes: Writes) -> bool:
        """Whether `permit` was called for the same requests since the ACLs have changed."""
        authorizer, acls = self.authorizer, self._image().access.acls
        if acls is not authorizer.acls:
            authorizer.use(acls)
        return writes in authorizer.permitted

    def permit(self, writes: Writes) -> None:
        """Keep that these requests may write, until the ACLs change."""
        self.authorizer.permit(writes)

    def may_on_any(
        self,
        principal: str,
        client_host: str,
        operation: AclOperation,
        resource_type: AclResourceType,
    ) -> bool:
        """Whether the principal may do the operation on any resource of the type."""
        self.authorizer.use(self._image().access.acls)
        return self.authorizer.may_on_any(principal, host_of(client_host), operation, resource_type)

    def authorized_operations(
        self, principal: str, client_host: str, resource_type: AclResourceType, name: str
    ) -> int:
        """Return the bit field of the allowed operations on a resource (KIP-430)."""
        self.authorizer.use(self._image().access.acls)
        return self.authorizer.authorized_operations(
            principal, host_of(client_host), resource_type, name
        )

    @property
    def version(self) -> object:
        """Another object after each change of the ACLs."""
        self.authorizer.use(self._image().access.acls)
        return self.authorizer.version

    def _write(self, level: int, question: Question, decision: Decision, api: str) -> None:
        second = int(monotonic_s())
        if second != self._second:
            if self._left_out:
                _logger.log(level, "%d more decisions, not listed", self._left_out)
            self._second, self._left_out = second, 0
            self._lines.clear()
        principal, host, operation, resource_type, name = question
        principal, name = _in_line(principal), _in_line(name)
        line = (principal, host, operation, resource_type, name), api, decision.is_allowed
        lines = self._lines.get(principal)
        if lines is None and len(self._lines) < PRINCIPALS_MAX:
            lines = self._lines[principal] = set()
        if lines is None or line in lines or len(lines) >= LINES_MAX:
            self._left_out += 1
            return
        lines.add(line)
        _logger.log(
            level,
            "Principal = %s is %s operation = %s from host = %s on resource = %s:LITERAL:%s "
            "for request = %s with resourceRefCount = 1 based on rule %s",
            principal,
            "Allowed" if decision.is_allowed else "Denied",
            AclOperation(operation).name,
            host,
            _RESOURCE_TITLES[AclResourceType(resource_type)],
            name,
            api,
            _rule_text(decision.rule),
        )


def access_control(
    settings: BrokerSettings,
    image: Callable[[], ClusterImage],
    new_authorizer: Callable[..., Authorizer] | None = None,
) -> AccessControl:
    """Return the authorizer of these settings. `image`: returns the newest image.

    `new_authorizer`: makes it, with the arguments of Authorizer; None: the real one.
    """
    authorizer = (new_authorizer or Authorizer)(
        super_users=super_users(settings.super_users),
        allows_without_acl=settings.allow_everyone_if_no_acl_found,
    )
    return AccessControl(authorizer, image)


def _in_line(name: str) -> str:
    """Return a name from a client as text that ends no line of the log, and is short."""
    text = cut(name)
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def _rule_text(rule: AclBinding | str) -> str:
    if isinstance(rule, str):
        return rule
    return (
        f"MatchingAcl(acl=StandardAcl(resourceType={AclResourceType(rule.resource_type).name}, "
        f"resourceName={_in_line(rule.resource_name)}, "
        f"patternType={PatternType(rule.pattern_type).name}, "
        f"principal={_in_line(rule.principal)}, host={_in_line(rule.host)}, "
        f"operation={AclOperation(rule.operation).name}, "
        f"permissionType={PermissionType(rule.permission_type).name}))"
    )
