"""A small web server for the store: it reads, it never writes, and it serves only files of runs."""

import asyncio
import tempfile
import zipfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO, Final

from aiohttp import web

from quorumlog.addresses import address_text
from quorumlog.chaos.store.pages import list_page, run_page
from quorumlog.chaos.store.runs import StoredRun, find_run, find_runs, matching

_STORE: Final = web.AppKey("store", Path)
_TEXT_SUFFIXES: Final = {".json", ".jsonl", ".log"}  # shown by a browser, not downloaded
_ZIP_CHUNK_BYTES: Final = 1 << 20

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class StoreServer:
    """Serves the runs below a directory; made, started and stopped once.

    Raises NotADirectoryError if the store is no directory, and OSError if the port is taken.
    """

    def __init__(self, store: Path, *, host: str, port: int) -> None:
        find_runs(store)
        application = web.Application(middlewares=[_guarded])
        application[_STORE] = store
        application.router.add_get("/", _list)
        application.router.add_get("/runs/{name:.+}/files/{file:.+}", _file)
        application.router.add_get("/runs/{name:.+}/zip", _zip)
        application.router.add_get("/runs/{name:.+}", _run)
        self._runner: Final = web.AppRunner(application, access_log=None)
        self._host: Final = host
        self._port: Final = port

    async def start(self) -> str:
        """Listen, and return the address of the first page."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        await site.start()
        host, port, *_ = self._runner.addresses[0]
        return f"http://{address_text(host, port)}/"

    async def stop(self) -> None:
        """Stop listening and end open requests."""
        await self._runner.cleanup()


@web.middleware
async def _guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Add headers that keep a run's page from loading external content and running scripts."""
    response = await handler(request)
    if not response.prepared:
        response.headers["Content-Security-Policy"] = (
            "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; "
            "form-action 'self'"
        )
        response.headers["X-Content-Type-Options"] = "nosniff"
    return response


async def _list(request: web.Request) -> web.StreamResponse:
    store = request.app[_STORE]
    runs = await asyncio.to_thread(find_runs, store)
    state, text = request.query.get("state", ""), request.query.get("text", "")
    shown = matching(runs, state=state, text=text)
    page = list_page(shown, total=len(runs), store=str(store), state=state, text=text)
    return web.Response(text=page, content_type="text/html")


async def _run(request: web.Request) -> web.StreamResponse:
    return web.Response(text=run_page(await _found(request)), content_type="text/html")


async def _file(request: web.Request) -> web.StreamResponse:
    run, name = await _found(request), request.match_info["file"]
    if name not in run.files:
        raise web.HTTPNotFound(text=f"{run.name} has no file {name}\n")
    path = run.directory / name
    headers = {"Content-Type": "text/plain; charset=utf-8"} if path.suffix in _TEXT_SUFFIXES else {}
    return web.FileResponse(path, headers=headers)


async def _zip(request: web.Request) -> web.StreamResponse:
    """Send the files of a run as one zip, made in a temporary file."""
    run = await _found(request)
    with tempfile.TemporaryFile() as archive:
        await asyncio.to_thread(_pack, run, archive)
        response = web.StreamResponse()
        response.content_type = "application/zip"
        name = run.directory.name.replace('"', "")
        response.headers["Content-Disposition"] = f'attachment; filename="{name}.zip"'
        response.content_length = archive.tell()
        archive.seek(0)
        await response.prepare(request)
        while chunk := await asyncio.to_thread(archive.read, _ZIP_CHUNK_BYTES):
            await response.write(chunk)
        await response.write_eof()
    return response


def _pack(run: StoredRun, archive: IO[bytes]) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in run.files:
            packed.write(run.directory / name, f"{run.directory.name}/{name}")


async def _found(request: web.Request) -> StoredRun:
    """Return the run that the address names, or end the request with 404."""
    name = request.match_info["name"]
    run = await asyncio.to_thread(find_run, request.app[_STORE], name)
    if run is None:
        raise web.HTTPNotFound(text=f"no run is called {name}\n")
    return run
