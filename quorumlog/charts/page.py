"""The frame of a page: one HTML file that can be mailed, and opened in ten years."""

from html import escape
from importlib.resources import files


def html_page(title: str, body: str) -> str:
    """Return the page. `title` is escaped; `body` is HTML."""
    style = files(__package__).joinpath("style.css").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def section(title: str, body: str) -> str:
    """Return a section of a page: its title is escaped, its body is HTML."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>"
