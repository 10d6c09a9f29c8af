"""A small web server for the store, and its pages: a list of runs, and one page per run.

It reads, it never writes, and it serves only files of runs. All shown text is escaped.
"""

import asyncio
import json
import tempfile
import zipfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import quote

from aiohttp import web

from quorumlog.addresses import address_text
from quorumlog.chaos.run.run_directory import REPORT_FILE
from quorumlog.chaos.store.runs import StoredRun, find_run, find_runs, matching
from quorumlog.charts.page import html_page

STATES: Final = ("valid", "invalid", "unknown", "not judged")
_RUNS_SHOWN: Final = 500
_ANOMALIES_SHOWN: Final = 4


def list_page(
    runs: Sequence[StoredRun], *, total: int, store: str, state: str = "", text: str = ""
) -> str:
    """Return the list of runs; `total` counts all runs of the store, shown or not."""
    rows = "".join(_row(run) for run in runs[:_RUNS_SHOWN])
    choices = "".join(
        f'<option value="{escape(name)}"{" selected" if name == state else ""}>{escape(name)}'
        "</option>"
        for name in STATES
    )
    form = (
        '<form><select name="state" aria-label="verdict"><option value="">all verdicts</option>'
        f'{choices}</select> <input name="text" value="{escape(text)}" aria-label="words" '
        'placeholder="words: a fault, a workload, a seed"> <button>show</button></form>'
    )
    table = (
        "<div class='wide runs'><table><tr><th>verdict</th><th>run</th><th>started (UTC)</th>"
        "<th>workload</th><th>faults</th><th>driver</th><th>seed</th><th>operations</th>"
        "<th>anomalies</th></tr>"
        f"{rows}</table></div>"
        if rows
        else "<p>No run is here. <code>quorumlog chaos run --out DIR</code> leaves one in DIR.</p>"
    )
    shown = f"{min(len(runs), _RUNS_SHOWN)} of {total} runs in {store}"
    body = f"<header><h1>Runs</h1><p class='run'>{escape(shown)}</p>{form}</header>"
    return html_page("Runs", f"{body}<section>{table}</section>")


def run_page(run: StoredRun) -> str:
    """Return the page of one run: verdict, commands to repeat it, files, and its meta.json."""
    style = run.state if run.state in STATES[:3] else "unknown"
    link = f"/runs/{quote(run.name)}"
    report = f'<a href="{link}/files/{REPORT_FILE}">the report</a>, ' * (REPORT_FILE in run.files)
    found = "".join(f"<li>{count:,} x {escape(name)}</li>" for name, count in run.broken.items())
    reasons = run.verdict.get("unknown_because", [])
    found += "".join(f"<li>Unknown: {escape(str(reason))}</li>" for reason in reasons)
    found += f"<li>{escape(run.unreadable)}</li>" if run.unreadable else ""
    shown = "".join(
        f'<li><a href="{link}/files/{quote(name)}">{escape(name)}</a></li>' for name in run.files
    )
    return html_page(
        f"{run.state}: {run.name}",
        f'<header class="{style}"><p class="run"><a href="/">runs</a> / {escape(run.name)}</p>'
        f"<h1>{escape(run.state.capitalize())}</h1>{f'<ul>{found}</ul>' if found else ''}"
        f'<p>{report}<a href="{link}/zip">everything as a zip</a></p></header>'
        f"<section><h2>Again</h2>{_commands(run)}</section>"
        f"<section><h2>Files</h2><ul>{shown}</ul></section>"
        f"<section><h2>Run</h2>{_table(run.meta)}</section>",
    )


def _commands(run: StoredRun) -> str:
    """Return the commands that check the history again, and that make the run again."""
    commands = [f"quorumlog verify {run.directory}"]
    if command := run.meta.get("command"):
        commands.append(str(command))
    return "".join(f"<pre>{escape(command)}</pre>" for command in commands)


def _row(run: StoredRun) -> str:
    broken = list(run.broken.items())
    found = ", ".join(f"{name} x{count:,}" for name, count in broken[:_ANOMALIES_SHOWN])
    found += ", ..." if len(broken) > _ANOMALIES_SHOWN else ""
    if not found:
        found = "; ".join(str(reason) for reason in run.verdict.get("unknown_because", []))
    cells = [
        f'<b class="state {run.state.replace(" ", "-")}">{escape(run.state)}</b>',
        f'<a href="/runs/{quote(run.name)}">{escape(run.name)}</a>',
        escape(run.started.removesuffix("+00:00").replace("T", " ")),
        *(escape(_plain(run.meta.get(name, ""))) for name in ("workload", "faults")),
        *(escape(_plain(run.meta.get(name, ""))) for name in ("driver", "seed")),
        escape(_plain(run.verdict.get("operations", ""))),
        escape(found or run.unreadable),
    ]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _table(meta: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(_plain(value))}</td></tr>"
        for name, value in meta.items()
        if value not in (None, "", [], {})
    )
    return f"<table>{rows}</table>" if rows else "<p>It has no meta.json.</p>"


def _plain(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(_plain(item) for item in value)
    return value if isinstance(value, str) else json.dumps(value, default=str)


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
