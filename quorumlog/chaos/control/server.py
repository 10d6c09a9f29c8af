"""The control server: the verbs of a running cluster over HTTP, for tests in any language.

A request carries `Authorization: Bearer TOKEN`, and a JSON object (GET: a query). The answer is a
JSON object; an error is `{"error", "hint"}`, with a status of 4xx. Verbs that change the cluster
are carried out in threads, one after the other, in the order of the requests; views and waits run
beside them. A client that goes away does not interrupt its verb: half a kill is none.
"""

import asyncio
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from aiohttp import web

from quorumlog.addresses import address_text
from quorumlog.chaos.control import openapi
from quorumlog.chaos.control.errors import answer_of
from quorumlog.chaos.control.kinds import Misuse, once
from quorumlog.chaos.control.lab import Lab
from quorumlog.chaos.control.verb import Verb, like
from quorumlog.chaos.control.verbs import VERBS

BODY_BYTES_MAX: Final = 4 << 20
_UNFINISHED_MAX: Final = 256  # verbs that run or wait for their turn
_BESIDE_MAX: Final = 64  # threads of views and waits
_SHUTDOWN_S: Final = 1.0
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - of all interfaces
_log: Final = logging.getLogger("quorumlog.control")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ControlServer:
    """Serves the verbs of one lab; made, started and stopped once."""

    def __init__(self, lab: Lab, *, token: str) -> None:
        self._lab: Final = lab
        self._token: Final = token.encode()
        self._document: Final = openapi.document()
        self._ending = ""  # why no more verbs are carried out
        self._unfinished = 0
        self._in_line: Final = ThreadPoolExecutor(1, "quorumlog-verb")
        self._beside: Final = ThreadPoolExecutor(_BESIDE_MAX, "quorumlog-view")
        application = web.Application(middlewares=[self._guard], client_max_size=BODY_BYTES_MAX)
        application.router.add_get(openapi.PATH, self._openapi, allow_head=False)
        for verb in VERBS.values():
            application.router.add_route(verb.method, verb.path, partial(self._answer, verb))
        self._runner: Final = web.AppRunner(
            application, access_log=None, shutdown_timeout=_SHUTDOWN_S
        )

    async def start(self, *, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen, and return the URL. Raises OSError if the port is in use."""
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        bound, number, *_ = self._runner.addresses[0]
        return f"http://{address_text(_LOOPBACK.get(bound, bound), number)}"

    def refuse(self, reason: str) -> None:
        """Carry out no further verb: each is answered with 503 and the reason."""
        self._ending = reason

    async def stop(self) -> None:
        """Stop listening; a verb that changes the cluster is carried out to its end."""
        self.refuse("the control server ends")
        await self._runner.cleanup()
        self._beside.shutdown(wait=False, cancel_futures=True)  # a wait may last for minutes
        await asyncio.to_thread(self._in_line.shutdown, cancel_futures=True)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Require the token, and answer every error as JSON."""
        try:
            if request.path != openapi.PATH and not self._is_known(request):
                hint = "send the header `Authorization: Bearer TOKEN`; `up` prints the token"
                return _failed(401, "the token is missing or wrong", hint, _ASK_FOR_TOKEN)
            return await handler(request)
        except web.HTTPRequestEntityTooLarge:
            hint = f"at most {BODY_BYTES_MAX} bytes; send operations in several requests"
            return _failed(413, "the body is too large", hint, {"Connection": "close"})
        except web.HTTPNotFound:
            return _failed(404, f"there is no {request.path}", _hint_of_path(request.path))
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            hint = f"{request.path} takes {allowed}"
            return _failed(405, f"{request.method} is not allowed here", hint, {"Allow": allowed})
        except Exception as error:  # noqa: BLE001 - the outermost frame of a request
            answer = answer_of(error)
            if answer.status >= 500:
                _log.error("%s %s", request.method, request.path, exc_info=error)
            return _failed(answer.status, answer.error, answer.hint)

    def _is_known(self, request: web.Request) -> bool:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        given = token.strip().encode(errors="surrogateescape")
        return hmac.compare_digest(given, self._token) and scheme.lower() == "bearer"

    async def _openapi(self, _: web.Request) -> web.StreamResponse:
        return web.json_response(self._document)

    async def _answer(self, verb: Verb, request: web.Request) -> web.StreamResponse:
        given = await _parameters_of(verb, request)
        if self._ending:
            return _failed(503, self._ending, "start the cluster again")
        if self._unfinished >= _UNFINISHED_MAX:
            hint = "wait for the answers of earlier requests"
            return _failed(429, f"{self._unfinished} verbs are unfinished", hint)
        self._unfinished += 1
        try:
            loop = asyncio.get_running_loop()
            pool = self._in_line if verb.in_line else self._beside
            answer = await loop.run_in_executor(pool, partial(verb.call, self._lab, **given))
        finally:
            self._unfinished -= 1
        return web.json_response(answer)


_ASK_FOR_TOKEN: Final = {"WWW-Authenticate": 'Bearer realm="quorumlog"'}


async def _parameters_of(verb: Verb, request: web.Request) -> dict[str, Any]:
    """Return the checked parameters of a request. Raises Misuse."""
    in_path = {
        name: verb.by_name[name].kind.from_text(name, text)
        for name, text in request.match_info.items()
    }
    if request.query and verb.method != "GET":
        raise Misuse("a query is not read here", "send the parameters as a JSON object")
    if verb.method == "GET":
        return verb.read(once(request.query.items()))
    document = _object_of(await request.read())
    if twice := sorted(in_path.keys() & document.keys()):
        raise Misuse(f"{twice[0]} is in the path, too", "leave it out of the body")
    return verb.checked({**in_path, **document})


def _object_of(body: bytes) -> Mapping[str, Any]:
    """Return the JSON object of a body; an empty body is an empty object. Raises Misuse."""
    if not body.strip():
        return {}
    try:
        document = json.loads(body, object_pairs_hook=once)
    except Misuse:
        raise
    except (ValueError, RecursionError) as error:
        hint = 'send a JSON object, such as {"target": 2}'
        raise Misuse(f"the body is no JSON: {error}", hint) from error
    if not isinstance(document, dict):
        raise Misuse("the body is no JSON object", 'send an object, such as {"target": 2}')
    return document


def _hint_of_path(path: str) -> str:
    known = [openapi.PATH, *dict.fromkeys(verb.path for verb in VERBS.values())]
    return f"{like(path, known)}{openapi.PATH} has every path"


def _failed(
    status: int, error: str, hint: str, headers: Mapping[str, str] | None = None
) -> web.Response:
    return web.json_response({"error": error, "hint": hint}, status=status, headers=headers)
