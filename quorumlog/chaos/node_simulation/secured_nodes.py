"""The security of simulated nodes: SASL in plain text, and ACLs, on their only listener.

The brokers and the super user of the clients log in by PLAIN; other users have the mechanism that
the workload requires.
"""

from typing import Final

from quorumlog.chaos.workloads.workload import RequiredSecurity
from quorumlog.client.security import SecuritySettings

_PASSWORD: Final = "simulated"  # noqa: S105 - of nodes without a network
_MECHANISM: Final = "PLAIN"
_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_BROKER: Final = "broker"
_LISTENER: Final = "listener.name.sasl_plaintext."


def secured(required: RequiredSecurity) -> dict[str, str]:
    """Return the settings of a node, beside its listener."""
    users = " ".join(f'user_{name}="{_PASSWORD}"' for name in (_BROKER, required.super_user))
    login = f'username="{_BROKER}" password="{_PASSWORD}"'
    return {
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": _MECHANISM,
        f"{_LISTENER}sasl.enabled.mechanisms": f"{_MECHANISM},{required.mechanism}",
        f"{_LISTENER}plain.sasl.jaas.config": f"{_MODULE} required {login} {users};",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{_BROKER};User:{required.super_user}",
        **required.config,
    }


def super_user(required: RequiredSecurity) -> SecuritySettings:
    """Return the login of the super user."""
    return SecuritySettings(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=_MECHANISM,
        sasl_username=required.super_user,
        sasl_password=_PASSWORD,
    )
