"""Tokens of OAUTHBEARER that an issuer gives a client for its secret (RFC 6749, section 4.4).

Of an issuer with https, the certificate must be of a given CA, or of one of the system's.
"""

import json
import threading
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple
from urllib.parse import quote_plus, urlencode

_TIMEOUT_S: Final = 10.0
_ANSWER_BYTES_MAX: Final = 1024 * 1024
_EXPIRES_S: Final = 60.0  # of an answer that leaves the lifetime out
_RETRY_S: Final = 10.0  # between requests that fail while a token is still valid
_RENEWED_AT: Final = 0.8  # of a token's lifetime, as Java's client and librdkafka


class IssuedToken(NamedTuple):
    """A token, and the seconds from its issue to its expiry."""

    text: str
    expires_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """A client's request for a token. `ca`: a file or text in PEM; None: the system's CAs.

    `may_use_proxy`: the proxy of the environment, as for any URL, is used.
    """

    client_id: str
    secret: str
    scope: str = ""
    ca: str | Path | None = None
    may_use_proxy: bool = True
    timeout_s: float = _TIMEOUT_S

    def __repr__(self) -> str:
        return f"<TokenRequest of {self.client_id}>"

    def send(self, url: str) -> IssuedToken:
        """Return a token. Raises OSError, and ValueError for an answer without a token."""
        from http.client import HTTPException
        from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

        if not url.startswith(("https://", "http://")):
            raise ValueError(f"{url}: the URL of an issuer begins with https://")
        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        pair = f"{quote_plus(self.client_id)}:{quote_plus(self.secret)}"
        request = Request(url, urlencode(form).encode())  # noqa: S310 - checked above
        login = f"Basic {b64encode(pair.encode()).decode()}"
        request.add_unredirected_header("Authorization", login)  # a redirection gets no secret
        context = None
        if url.startswith("https://"):
            from quorumlog.wire.io.security import client_context

            context = client_context(
                ca=None if self.ca is None else str(self.ca),
                certificate=None,
                key=None,
                key_password=None,
                check_hostname=True,
            )
        opener = build_opener(
            HTTPSHandler(context=context), *([] if self.may_use_proxy else [ProxyHandler({})])
        )
        try:
            with opener.open(request, timeout=self.timeout_s) as answer:
                document = json.loads(answer.read(_ANSWER_BYTES_MAX))
        except HTTPException as error:
            raise OSError(f"{url}: no answer in HTTP: {error!r}") from error
        token = document.get("access_token") if isinstance(document, dict) else None
        if not isinstance(token, str):
            raise ValueError(f"{url}: the answer has no access_token")  # noqa: TRY004 - of a text
        return IssuedToken(token, _lifetime_s(document.get("expires_in")))


def _lifetime_s(given: object) -> float:
    """Return a lifetime in an answer; the default for an answer without a number."""
    with suppress(TypeError, ValueError):
        seconds = float(given)  # type: ignore[arg-type]  # other types raise
        return seconds if isfinite(seconds) else _EXPIRES_S
    return _EXPIRES_S


class IssuedTokens:
    """A source of tokens for clients: a call returns one. Any thread may call it.

    It keeps a token for most of its lifetime, and until it expires if no issuer gives another, so
    that an issuer that is down for a while, or slow, stops no connection. The issuers at `urls` are
    equal: each is tried before a call fails.
    """

    def __init__(
        self,
        urls: Sequence[str],
        send: Callable[[str], IssuedToken],
        now_s: Callable[[], float] = monotonic,
    ) -> None:
        """`send`: requests a token at a URL; it raises OSError or ValueError."""
        self._urls: Final = [*urls]
        self._send: Final = send
        self._now_s: Final = now_s
        self._lock: Final = threading.Lock()
        self._token = ""
        self._renew_s = 0.0
        self._expiry_s = 0.0

    def __call__(self) -> str:
        """Return a token. Raises the error of the last issuer if none gives one."""
        with self._lock:
            if not self._token or self._now_s() >= self._renew_s:
                try:
                    self._request()
                except (OSError, ValueError):
                    self._renew_s = min(self._now_s() + _RETRY_S, self._expiry_s)
                    if self._now_s() >= self._expiry_s:
                        raise
            return self._token

    def _request(self) -> None:
        for place, url in enumerate(self._urls, 1):
            try:
                issued = self._send(url)
            except (OSError, ValueError):
                if place == len(self._urls):
                    raise
                continue
            self._token = issued.text
            now_s = self._now_s()
            self._renew_s = now_s + issued.expires_s * _RENEWED_AT
            self._expiry_s = now_s + issued.expires_s
            self._urls.insert(0, self._urls.pop(place - 1))  # the next request begins with it
            return


def one_token(url: str, request: TokenRequest) -> str:
    """Return a new token. Raises OSError, ValueError."""
    return request.send(url).text


def tokens_at(urls: Sequence[str], request: TokenRequest) -> IssuedTokens:
    """Return a source of tokens of equal issuers."""
    return IssuedTokens(urls, partial(TokenRequest.send, request))
