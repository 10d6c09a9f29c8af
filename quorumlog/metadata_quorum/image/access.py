"""The clients' ACLs, quotas and SCRAM credentials in the metadata.

Sources: KIP-11, KIP-290, KIP-546, KIP-554. Brokers without an authorizer enforce no ACLs:
docs/decisions/0060-authorization.md,
docs/decisions/0040-accepted-without-effect.md
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from quorumlog.invariants import require
from quorumlog.metadata_quorum.image import records
from quorumlog.metadata_quorum.image.records import AccessRecord, AclBinding, QuotaEntity
from quorumlog.metadata_quorum.image.scram import ScramCredential


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessImage:
    """All ACLs, quotas by entity (at least one each), and credentials by (user, mechanism)."""

    acls: frozenset[AclBinding] = frozenset()
    quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    credentials: Mapping[tuple[str, int], ScramCredential] = field(default_factory=dict)


class AccessReplay:
    """The access metadata, changed record by record. Its collections are live: do not keep them."""

    def __init__(self, image: AccessImage) -> None:
        self.acls: Final = set(image.acls)
        self.quotas: Final = dict(image.quotas)
        self.credentials: Final = dict(image.credentials)
        self._frozen: AccessImage | None = image

    def apply(self, record: AccessRecord) -> None:
        """Apply a record. Raises InvariantViolation if it removes an absent item."""
        self._frozen = None
        match record:
            case records.AccessControlEntry(acl=acl):
                self.acls.add(acl)
            case records.RemoveAccessControlEntry(acl=acl):
                require(acl in self.acls, "1: an ACL to remove exists")
                self.acls.remove(acl)
            case records.UserScramCredential(user=user, mechanism=mechanism, credential=credential):
                self.credentials[user, mechanism] = credential
            case records.RemoveUserScramCredential(user=user, mechanism=mechanism):
                require((user, mechanism) in self.credentials, "1: a credential to remove exists")
                del self.credentials[user, mechanism]
            case records.ClientQuota(entity=entity, key=key, value=value):
                quotas = {k: v for k, v in self.quotas.get(entity, {}).items() if k != key}
                if value is not None:
                    quotas[key] = value
                self.quotas[entity] = quotas
                if not quotas:
                    del self.quotas[entity]

    def freeze(self) -> AccessImage:
        """Return the image: the same object until a record changes the metadata."""
        if self._frozen is None:
            self._frozen = AccessImage(
                acls=frozenset(self.acls),
                quotas=dict(self.quotas),
                credentials=dict(self.credentials),
            )
        return self._frozen


def access_records(image: AccessImage) -> Iterator[AccessRecord]:
    """Yield the records that rebuild the image."""
    for acl in sorted(image.acls):
        yield records.AccessControlEntry(acl=acl)
    for entity, quotas in image.quotas.items():
        for key, value in quotas.items():
            yield records.ClientQuota(entity=entity, key=key, value=value)
    for (user, mechanism), credential in image.credentials.items():
        yield records.UserScramCredential(user=user, mechanism=mechanism, credential=credential)
