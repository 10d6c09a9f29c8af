"""State diagrams of the documentation, drawn from the transition tables of the code.

A line `<!-- drawn from MODULE:TABLE -->` stands before each diagram. The diagram shows exactly the
changes that the table allows, in the order of the table. The label of a change, after the
colon, is the page's own and stays when the diagram is drawn anew.
"""

import re
from collections.abc import Collection, Mapping
from enum import Enum
from importlib import import_module

State = type | Enum
Table = Mapping[State, Collection[State]]

_DIAGRAM = re.compile(
    r"(?P<source><!-- drawn from (?P<module>[\w.]+):(?P<table>\w+) -->\n)?"
    r"```mermaid\nstateDiagram-v2\n(?P<lines>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_CHANGE = re.compile(r"    (?P<change>\S+ --> \S+?)(?P<reason>: .*)?")


def redraw(page: str) -> str:
    """Return the page with each of its diagrams drawn from its table.

    Raises ValueError for a diagram that names no table.
    """
    return _DIAGRAM.sub(_drawn, page)


def _drawn(diagram: re.Match[str]) -> str:
    if diagram["source"] is None:
        raise ValueError(f"a diagram that names no table:\n{diagram['lines']}")
    table: Table = getattr(import_module(diagram["module"]), diagram["table"])
    reasons = {
        known["change"]: known["reason"] or ""
        for line in diagram["lines"].splitlines()
        if (known := _CHANGE.fullmatch(line)) is not None
    }
    changes = [change for change in reasons if change.startswith("[*]")]
    order = list(table)
    for before, after_all in table.items():
        in_order = sorted(after_all, key=order.index)
        changes += [f"{_name(before)} --> {_name(after)}" for after in in_order]
    lines = "".join(f"    {change}{reasons.get(change, '')}\n" for change in changes)
    return f"{diagram['source']}```mermaid\nstateDiagram-v2\n{lines}```"


def _name(state: State) -> str:
    if isinstance(state, type):
        return state.__name__
    is_word = isinstance(state.value, str) and state.value.isidentifier()
    return str(state.value) if is_word else state.name
