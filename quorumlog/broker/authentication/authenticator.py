"""The SASL mechanisms of one listener, and the sessions of its connections."""

from base64 import b64encode
from collections.abc import Callable
from functools import partial
from typing import Final

from quorumlog.broker.authentication.core.bearer import BearerExchange, unsigned_claims
from quorumlog.broker.authentication.core.exchange import Exchange
from quorumlog.broker.authentication.core.plain import PlainExchange
from quorumlog.broker.authentication.core.scram import (
    NONCE_BYTES,
    Credentials,
    ScramExchange,
    UnknownUsers,
)
from quorumlog.broker.authentication.core.session import SaslSession
from quorumlog.broker.authentication.io.token_keys import TokenKeys
from quorumlog.chance import random_bytes
from quorumlog.metadata_quorum.image.scram import ScramMechanism
from quorumlog.settings.sasl import (
    PLAIN,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    MechanismSettings,
    SaslSettings,
    TokenSettings,
)
from quorumlog.tasks import Tasks

_SCRAM: Final = {SCRAM_SHA_256: ScramMechanism.SHA_256, SCRAM_SHA_512: ScramMechanism.SHA_512}


class Authenticator:
    """Creates the sessions of a listener's connections."""

    def __init__(
        self,
        settings: SaslSettings,
        *,
        credentials: Callable[[], Credentials],
        secret: bytes,
        tasks: Tasks,
        new_session: Callable[..., SaslSession] | None = None,
    ) -> None:
        """`credentials`: the present ones of SCRAM. `secret`: of `UnknownUsers`.

        `tasks`: to renew the keys of signed tokens. `new_session`: makes the session of a
        connection; None: the real one.
        """
        self._new_session: Final = new_session or SaslSession
        self.settings: Final = settings
        self._credentials: Final = credentials
        self._unknown: Final = UnknownUsers(secret)
        self._keys: TokenKeys | None = None
        self._exchanges: Final[dict[str, Callable[[], Exchange]]] = {
            name: self._exchange(mechanism, tasks)
            for name, mechanism in settings.mechanisms.items()
        }

    async def start(self) -> None:
        """Read the keys of signed tokens, if they need any."""
        if self._keys is not None:
            await self._keys.start()

    def new_session(self) -> SaslSession:
        """Return the session of a new connection."""
        return self._new_session(self.settings, self._exchanges)

    def _exchange(self, mechanism: MechanismSettings, tasks: Tasks) -> Callable[[], Exchange]:
        if mechanism.name == PLAIN:
            return partial(PlainExchange, mechanism.users)
        if mechanism.name in _SCRAM:
            return partial(self._scram, _SCRAM[mechanism.name])
        tokens = mechanism.tokens or TokenSettings()
        if tokens.jwks_url is None:
            return partial(BearerExchange, tokens, unsigned_claims)
        self._keys = TokenKeys(tokens, tasks)
        return partial(BearerExchange, tokens, self._keys.claims)

    def _scram(self, mechanism: ScramMechanism) -> ScramExchange:
        nonce = b64encode(random_bytes(NONCE_BYTES)).decode()
        return ScramExchange(mechanism, self._credentials, self._unknown, nonce)
