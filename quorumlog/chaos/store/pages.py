"""The pages of the store: a list of runs, and one page per run. All shown text is escaped."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote

from quorumlog.chaos.run_directory import REPORT_FILE
from quorumlog.chaos.store.runs import StoredRun

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
    return _page("Runs", f"{body}<section>{table}</section>")


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
    return _page(
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


def _page(title: str, body: str) -> str:
    style = files("quorumlog.chaos.report").joinpath("style.css").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )
