"""The settings of the authorizer, under Kafka's names."""

from typing import Final

from quorumlog.settings import kinds
from quorumlog.settings.kinds import BadValue, ConfigType, Kind
from quorumlog.settings.servers import ServerSetting

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def super_users(text: str) -> frozenset[str]:
    """Return the principals in a list that is separated by semicolons. Raises BadValue."""
    found = frozenset(one.strip() for one in text.split(";") if one.strip())
    for one in sorted(found):
        kind, colon, name = one.partition(":")
        if not (kind and colon and name):
            raise BadValue(f"{one} is not a principal: write it as User:name; separate them by ;")
    return found


def _principals(text: str) -> str:
    text = text.strip()
    super_users(text)
    return text


AUTHORIZER: Final = ServerSetting(
    kind=kinds.choice("", STANDARD_AUTHORIZER),
    default="",
    documentation="The class that decides whether a client may do what it requests, by the ACLs of "
    "the cluster. Empty: ACLs are stored, and every client may do everything.",
)
SUPER_USERS: Final = ServerSetting(
    kind=Kind(type=ConfigType.STRING, normalize=_principals, parse=str),
    default="",
    documentation="Principals that may do everything: User:a;User:b. The principal of the other "
    "brokers must be one of them, or hold CLUSTER_ACTION.",
)
EVERYONE_WITHOUT_ACL: Final = ServerSetting(
    kind=kinds.FLAG,
    default="false",
    documentation="Whether everyone may use a resource that has no ACLs.",
)
