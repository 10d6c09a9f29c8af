"""PLAIN: a name and a password in one token. Sources: RFC 4616; Kafka's PlainSaslServer."""

import hmac
from collections.abc import Mapping
from typing import Final

from quorumlog.broker.authentication.core.exchange import (
    Authenticated,
    Outcome,
    Rejected,
    other_user,
)

_PARTS: Final = 3
_INVALID: Final = "Authentication failed: Invalid username or password"
_DUMMY: Final = b"\0"  # no password: the separator of the parts


class PlainExchange:
    """Checks one token against `users`: passwords by name."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users: Final = users

    def receive(self, token: bytes, wall_ms: int) -> Outcome:
        """Return the outcome of `[authorization id] NUL name NUL password`."""
        del wall_ms  # passwords do not expire
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            return Rejected(reason="the token is not UTF-8")
        if len(parts) != _PARTS:
            return Rejected(reason=f"the token has {len(parts)} parts, not {_PARTS}")
        authorization_id, user, password = parts
        if not user or not password:
            name = "password" if user else "username"
            return Rejected(
                reason=f"no {name}", message=f"Authentication failed: {name} not specified"
            )
        stored = self._users.get(user)
        expected = _DUMMY if stored is None else stored.encode()
        if not hmac.compare_digest(password.encode(), expected):
            reason = f"no user {user!r}" if stored is None else f"wrong password of {user!r}"
            return Rejected(reason=reason, message=_INVALID)
        if authorization_id not in {"", user}:
            return other_user(user, authorization_id)
        return Authenticated(user=user)
