"""docs/configuration.md lists every setting there is: `--rewrite` writes its tables again."""

from collections import defaultdict
from pathlib import Path

import pytest

from quorumlog.cluster.defaults import FAST_DEFAULTS
from quorumlog.node.config import READERS, SETTINGS, known_names, without_effect
from quorumlog.settings.kafka_names import GROUPS
from quorumlog.settings.listeners import ROWS
from quorumlog.settings.servers import IDENTITY, explanation, rows_of
from quorumlog.settings.topics import TOPIC_SETTINGS

PAGE = Path(__file__).parents[3] / "docs/configuration.md"
TABLE = "| name | default | fast | |\n"  # the page ends with it, and with the next two
TOPICS = """
## The settings of topics

`quorumlog topics create --config NAME=VALUE` and `quorumlog configs alter` set them, as does every
client of Kafka. Where a topic does not set one, the setting of the node that leads it holds.

| name | default | of the node | |
|---|---|---|---|
"""
WITHOUT_EFFECT = """
## Settings of Apache Kafka that change nothing here

They are taken with a warning, so that a configuration written for Apache Kafka starts a node. The
values of settings that hold for topics, or that Kafka alters while a broker runs, are checked, and
described to clients.

| why | names |
|---|---|
"""
IDENTITY_NAMES = {setting.name for setting in IDENTITY}


def table() -> str:
    known = [
        f"| `{name}` | {SETTINGS[name].default or ''} | {FAST_DEFAULTS.get(name, '')} "
        f"| {SETTINGS[name].documentation} |"
        for name in known_names()
        if name not in IDENTITY_NAMES
    ]
    topics = [
        f"| `{name}` | {setting.default} | {f'`{setting.server}`' if setting.server else ''} "
        f"| {explanation(setting)} |"
        for name, setting in sorted(TOPIC_SETTINGS.items())
    ]
    names = defaultdict(set, {why: {*names.split()} for why, names in GROUPS.items()})
    for setting in SETTINGS.values():
        if setting.without_effect:
            names[setting.without_effect] |= {setting.name, *(a.name for a in setting.aliases)}
    ignored = [
        f"| {why} | {', '.join(f'`{name}`' for name in sorted(group))} |"
        for why, group in names.items()
    ]
    heads = (TABLE + "|---|---|---|---|\n", TOPICS, WITHOUT_EFFECT)
    rows = (known, topics, ignored)
    return "".join(
        head + "".join(f"{row}\n" for row in group) for head, group in zip(heads, rows, strict=True)
    )


def test_the_page_lists_what_is_known(request: pytest.FixtureRequest) -> None:
    text, _, _ = PAGE.read_text().partition(TABLE)
    if request.config.getoption("--rewrite"):
        PAGE.write_text(text + table())
    assert PAGE.read_text() == text + table()
    assert all(f"| `{name}` |" in text for name in IDENTITY_NAMES)


def test_a_setting_that_two_parts_read_has_one_row() -> None:
    rows = [row for group in READERS for row in rows_of(group).values()]
    assert all(row == SETTINGS[row.name] for row in rows)
    assert {row.name for row in rows} | IDENTITY_NAMES | {*ROWS} == {*known_names()}


def test_fast_defaults_are_settings_and_change_something() -> None:
    assert all(SETTINGS[name].default != fast for name, fast in FAST_DEFAULTS.items())


def test_what_has_no_effect_is_warned_of_by_every_name() -> None:
    names = {setting.name: "1" for setting in SETTINGS.values() if setting.without_effect}
    assert without_effect({**names, "num.partitions": "1", "log.roll.hours": "1"}) == sorted(names)
    assert without_effect({"log.roll.jitter.hours": "1", "log.retention.hours": "1"}) == []
