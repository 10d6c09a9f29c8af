"""Opens pages in headless Chromium and measures the drawing."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
WIDTH_PX = 1200
_LIMIT_S = 60
_MEASURE = """<script>
const box = part => { const b = part.getBoundingClientRect();
  return {left: b.left, right: b.right, top: b.top, bottom: b.bottom}; };
const shows = part => { const s = getComputedStyle(part);
  return [s.fill, s.stroke].some(colour => colour !== 'none'); };
const charts = [...document.querySelectorAll('svg')].map(svg => ({
  name: svg.getAttribute('aria-label'),
  box: box(svg),
  marks: [...svg.querySelectorAll('rect, path, polyline, circle')].map(
    part => ({style: part.getAttribute('class'), shows: shows(part), ...box(part)})),
  texts: [...svg.querySelectorAll('text')].map(
    part => ({style: part.getAttribute('class'), text: part.textContent, ...box(part)})),
}));
const told = document.createElement('pre');
told.id = 'measured';
told.textContent = JSON.stringify({
  scrolls: document.documentElement.scrollWidth > document.documentElement.clientWidth, charts});
document.body.append(told);
</script>"""


class Seen(NamedTuple):
    """A page in a browser: whether it scrolls sideways, its charts, its console lines."""

    scrolls: bool
    charts: list[dict[str, Any]]
    console: list[str]


def look_at(page: str, directory: Path, *, profile: Path) -> Seen:
    """Show a page, and return its measurements. Needs CHROMIUM."""
    assert CHROMIUM is not None
    file = directory / "measured.html"
    file.write_text(page.replace("</body>", f"{_MEASURE}</body>"))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += ["--enable-logging=stderr", f"--window-size={WIDTH_PX},4000"]
    command += [f"--user-data-dir={profile}", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_LIMIT_S)
    found = re.search(r'<pre id="measured">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr
    measured = json.loads(unescape(found[1]))
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Seen(measured["scrolls"], measured["charts"], console)


def overlapping(texts: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the pairs of texts of a chart that lie on one another."""
    return [
        (one["text"], other["text"])
        for place, one in enumerate(texts)
        for other in texts[place + 1 :]
        if one["left"] < other["right"] - 1
        and other["left"] < one["right"] - 1
        and one["top"] < other["bottom"] - 3
        and other["top"] < one["bottom"] - 3
    ]


def outside(chart: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the elements of a chart beyond its border."""
    border = chart["box"]
    return [
        part
        for part in (*chart["marks"], *chart["texts"])
        if part["left"] < border["left"] - 2
        or part["right"] > border["right"] + 2
        or part["top"] < border["top"] - 2
        or part["bottom"] > border["bottom"] + 2
    ]
