"""The public keys that sign the tokens of OAUTHBEARER: read from a URL, and renewed.

Only the configured URL is read: no redirect is followed, and no URL of a token. Signatures are
checked with an allow list of algorithms: never `none`, never a shared secret. Sources: RFC 7517,
RFC 8725, KIP-768, Kafka's RefreshingHttpsJwks.
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from quorumlog.backoff import Backoff
from quorumlog.broker.authentication.core.bearer import BadToken, Claims
from quorumlog.chance import random_fraction
from quorumlog.clock import monotonic_ms
from quorumlog.extras import why_no_packages
from quorumlog.settings.sasl import TokenSettings
from quorumlog.tasks import Tasks

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

ALGORITHMS: Final = tuple(
    f"{kind}{bits}" for kind in ("RS", "ES", "PS") for bits in (256, 384, 512)
)
KEYS_MAX_BYTES: Final = 1024 * 1024
FETCH_TIMEOUT_S: Final = 10.0
_SECTIONS: Final = 3

_logger: Final = logging.getLogger(__name__)


class NoKeys(Exception):
    """The keys cannot be read now; the message gives the reason."""


class TokenKeys:
    """The keys of `settings.jwks_url`, which is set. Without keys, no token is accepted."""

    def __init__(self, settings: TokenSettings, tasks: Tasks) -> None:
        """`tasks`: their owner stops the renewal."""
        self._settings: Final = settings
        self._url: Final = settings.jwks_url or ""
        self._keys: KeySet | None = None
        self._is_missed: Final = asyncio.Event()  # a token names a key that is not there
        self._read_ms = 0
        self._tasks: Final = tasks
        self._failures = 0
        self._backoff: Final = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)

    async def start(self) -> None:
        """Read the keys once, and again from time to time. Raises ImportError without the extra."""
        missing = why_no_packages("signed tokens need", ("joserfc", "cryptography"), "security")
        if missing:
            raise ImportError(missing)
        pause_ms = await self._renew()
        self._tasks.start(self._renew_always(pause_ms))

    def claims(self, token: str) -> Claims:
        """Return the claims of a token with a valid signature. Raises BadToken."""
        if self._keys is None:
            raise BadToken(f"no keys could be read from {self._url} yet")
        from joserfc import errors, jwt  # loaded with the keys

        if token.count(".") != _SECTIONS - 1:  # five: encrypted
            raise BadToken("the token is no signed compact JWS")
        try:
            return dict(jwt.decode(token, self._keys, algorithms=ALGORITHMS).claims)
        except errors.InvalidKeyIdError as error:
            if monotonic_ms() - self._read_ms >= self._settings.retry_backoff_max_ms:
                self._is_missed.set()
            raise BadToken("no key has the id that the token names") from error
        except (errors.JoseError, ValueError, TypeError, RecursionError) as error:
            raise BadToken(f"the signature cannot be checked: {type(error).__name__}") from error

    async def _renew_always(self, pause_ms: int) -> None:
        while True:
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await self._is_missed.wait()
            except TimeoutError:
                pass
            pause_ms = await self._renew()

    async def _renew(self) -> int:
        """Read the keys; return the time until they should be read again, in ms."""
        self._is_missed.clear()
        try:
            self._keys = await asyncio.to_thread(_key_set, await _fetch(self._url))
        except NoKeys as error:
            _logger.warning("keys of tokens: %s: %s", self._url, error)
            self._failures += 1
            return int(self._backoff.delay_ms(self._failures, random_fraction()))
        finally:
            self._read_ms = monotonic_ms()
        self._failures = 0
        return self._settings.refresh_ms


async def _fetch(url: str) -> bytes:
    """Return the content of a URL, at most KEYS_MAX_BYTES. Raises NoKeys."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return await asyncio.to_thread(_read, Path(unquote(parts.path)))
    import aiohttp  # a node has loaded it for its control listener

    timeout = aiohttp.ClientTimeout(total=FETCH_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise NoKeys(f"the status is {response.status}")
            content = b""
            async for part in response.content.iter_chunked(64 * 1024):
                content += part
                if len(content) > KEYS_MAX_BYTES:
                    raise NoKeys(f"it has more than {KEYS_MAX_BYTES} bytes")
            return content
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise NoKeys(str(error) or type(error).__name__) from error


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(KEYS_MAX_BYTES + 1)
    except OSError as error:
        raise NoKeys(error.strerror or str(error)) from error
    if len(content) > KEYS_MAX_BYTES:
        raise NoKeys(f"it has more than {KEYS_MAX_BYTES} bytes")
    return content


def _key_set(content: bytes) -> "KeySet":
    """Return the keys of a JWKS (RFC 7517). Raises NoKeys."""
    from joserfc import errors
    from joserfc.jwk import KeySet

    try:
        found: Mapping[str, Any] = json.loads(content)
        return KeySet.import_key_set({"keys": [dict(one) for one in found["keys"]]})
    except (errors.JoseError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise NoKeys(f"it is no JWKS: {type(error).__name__}: {error}") from error
