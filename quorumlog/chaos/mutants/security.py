"""Brokers that break one rule of rights or of authentication each.

The workload `authorized` finds brokers that serve a client without its former right. The clients of
the lab authenticate again in time and as the same user, so tests of the core find the others.
"""

from collections.abc import Iterator
from typing import Final

from quorumlog.broker.authentication.core.exchange import Exchange, Outcome
from quorumlog.broker.authentication.core.session import Effect, SaslSession, Serve, State
from quorumlog.broker.authorization.core.acl_index import AclIndex, ByPrincipal
from quorumlog.broker.authorization.core.authorizer import Authorizer
from quorumlog.chaos.mutants.mutant import Mutants
from quorumlog.metadata_quorum.image.acls import PermissionType
from quorumlog.metadata_quorum.image.records import AclBinding

SECURITY: Final = Mutants("security")


@SECURITY.breaks("an ACL that denies is ignored beside one that allows (KIP-11)")
class _IgnoresDenials(AclIndex):
    def _covers(self, acl: AclBinding, operation: int) -> bool:
        return acl.permission_type != PermissionType.DENY and super()._covers(acl, operation)


@SECURITY.breaks("a prefixed ACL covers each name that has the prefix anywhere (KIP-290)")
class _PrefixesMatchAnywhere(AclIndex):
    def _candidates(self, resource_type: int, name: str) -> Iterator[ByPrincipal]:
        yield from super()._candidates(resource_type, name)
        for (kind, prefix), entry in self._prefixed.items():
            if kind == resource_type and prefix in name and not name.startswith(prefix):
                yield entry


@SECURITY.breaks("decisions about rights outlive the ACLs that they were made by")
class _KeepsDecisions(Authorizer):
    def _void(self) -> None:
        self.version = object()


@SECURITY.breaks("a client is served after the end of its session (KIP-368)")
class _ServesEndedSessions(SaslSession):
    def _serve(self, label: str, now_ms: int) -> list[Effect]:
        if self.state is State.COMPLETE:
            return [Serve()]
        return super()._serve(label, now_ms)


@SECURITY.breaks("a client becomes another user when it authenticates again (KIP-368)")
class _ChangesThePrincipal(SaslSession):
    def _outcome(self, exchange: Exchange, token: bytes, wall_ms: int) -> Outcome:
        return exchange.receive(token, wall_ms)
