"""docs/configuration.md lists every setting there is: `--rewrite` prints its tables again."""

from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from quorumlog.cluster.layout import FAST_DEFAULTS
from quorumlog.node.config import _GROUPS, _NODE_NAMES, known_names, name_of
from quorumlog.node.kafka_settings import GROUPS

PAGE = Path(__file__).parents[3] / "docs/configuration.md"
TABLE = "| name | default | fast |\n"  # the page ends with it, and with the next
WITHOUT_EFFECT = """
## Settings of Apache Kafka that change nothing here

They are taken with a warning, so that a configuration written for Apache Kafka starts a node.

| why | names |
|---|---|
"""


def defaults() -> Iterator[tuple[str, str]]:
    for group, prefix in _GROUPS:
        for field in fields(group):
            name = name_of(field.name, prefix)
            if name in known_names() and field.default is not MISSING:
                is_flag = isinstance(field.default, bool)
                yield name, str(field.default).lower() if is_flag else str(field.default)


def table() -> str:
    rows = [
        f"| `{name}` | {default} | {FAST_DEFAULTS.get(name, '')} |"
        for name, default in sorted({*defaults()})
    ]
    ignored = [
        f"| {reason} | {', '.join(f'`{name}`' for name in sorted(names.split()))} |"
        for reason, names in GROUPS.items()
    ]
    known = "\n".join([TABLE + "|---|---|---|", *rows]) + "\n"
    return known + WITHOUT_EFFECT + "\n".join(ignored) + "\n"


def test_the_page_lists_what_is_known(request: pytest.FixtureRequest) -> None:
    text, _, _ = PAGE.read_text().partition(TABLE)
    if request.config.getoption("--rewrite"):
        PAGE.write_text(text + table())
    assert PAGE.read_text() == text + table()
    assert all(f"| `{name}` |" in text for name in _NODE_NAMES)


def test_a_setting_that_two_parts_read_has_one_default() -> None:
    assert sorted({*dict(defaults()), *_NODE_NAMES}) == known_names()
    assert len({*defaults()}) == len(dict(defaults()))


def test_fast_defaults_are_settings_and_change_something() -> None:
    assert all(dict(defaults())[name] != fast for name, fast in FAST_DEFAULTS.items())
