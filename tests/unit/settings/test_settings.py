"""Every row of the settings says what it must, and what is described is what the code reads."""

from dataclasses import fields

import pytest

from quorumlog.node import config
from quorumlog.node.config import READERS, SETTINGS
from quorumlog.settings.kinds import BadValue, ConfigType
from quorumlog.settings.servers import (
    ConfigSource,
    ServerSetting,
    StaticConfig,
    explanation,
    rows_of,
    table_of,
    texts_of,
)
from quorumlog.settings.topics import TOPIC_SETTINGS, TopicConfig, TopicSetting

COMPLETE = {
    "node.id": "1",
    "cluster.id": "c",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "control.listener": "127.0.0.1:19092",
    "controller.quorum.voters": "1@127.0.0.1:19092",
    "log.dirs": "/tmp/data",
}
OF_KAFKA = """
    cleanup.policy compression.gzip.level compression.lz4.level compression.type
    compression.zstd.level delete.retention.ms file.delete.delay.ms flush.messages flush.ms
    follower.replication.throttled.replicas index.interval.bytes
    leader.replication.throttled.replicas local.retention.bytes local.retention.ms
    max.compaction.lag.ms max.message.bytes message.timestamp.after.max.ms
    message.timestamp.before.max.ms message.timestamp.type min.cleanable.dirty.ratio
    min.compaction.lag.ms min.insync.replicas preallocate remote.log.copy.disable
    remote.log.delete.on.disable remote.storage.enable retention.bytes retention.ms segment.bytes
    segment.index.bytes segment.jitter.ms segment.ms unclean.leader.election.enable
"""
STATIC, DEFAULT = ConfigSource.STATIC_BROKER, ConfigSource.DEFAULT


def other_value(setting: TopicSetting[object]) -> str:
    """Return a value that is not the default, and that a node takes too."""
    for text in ("2000000", "7", "true", "compact", "gzip", "LogAppendTime", "0.25"):
        try:
            if setting.kind.normalize(text) != setting.default:
                return text
        except BadValue:
            continue
    raise AssertionError(setting.name)


def test_topics_have_the_settings_of_kafka() -> None:
    assert [*TOPIC_SETTINGS] == sorted(TOPIC_SETTINGS) == OF_KAFKA.split()


@pytest.mark.parametrize("name", [*TOPIC_SETTINGS, *SETTINGS])
def test_every_setting_is_documented_and_has_a_default_that_it_takes(name: str) -> None:
    for table in (TOPIC_SETTINGS, SETTINGS):
        setting = table.get(name)
        if setting is not None:
            assert explanation(setting).endswith(".")
            assert setting.default is None or (
                setting.kind.normalize(setting.default) == setting.default
            )
            assert setting.kind.type in ConfigType


@pytest.mark.parametrize("setting", [*TOPIC_SETTINGS.values(), *SETTINGS.values()])
def test_no_text_does_any_harm(setting: TopicSetting[object] | ServerSetting[object]) -> None:
    for text in ("", "0", "-0", "\0", "x" * 32_767, "1" * 5000, "\N{PILE OF POO}", "TRUE", "²"):
        try:
            kept = setting.kind.normalize(text)
        except BadValue:
            continue
        assert setting.kind.normalize(kept) == kept
        setting.kind.parse(kept)


def test_every_field_of_what_reads_settings_is_a_row() -> None:
    for group in READERS:
        assert [*rows_of(group)] == [field.name for field in fields(group)]
        assert texts_of(group()) == {row.name: row.default for row in rows_of(group).values()}


@pytest.mark.parametrize("name", TOPIC_SETTINGS)
def test_a_topic_that_does_not_set_it_goes_by_the_node(name: str) -> None:
    setting = TOPIC_SETTINGS[name]
    if not setting.server:
        assert TopicConfig({}, {}).text(setting) == setting.default
        return
    other = other_value(setting)
    built = config.build({**COMPLETE, setting.server: other})
    described = TopicConfig({}, built.static.texts)
    assert described.text(setting) == other != setting.default
    if not setting.without_effect:  # what the replicas, their logs and the controller read
        read = texts_of(built.broker, built.log, built.controller)
        in_force = TopicConfig({}, read)
        assert in_force.text(setting) == other
    assert TopicConfig({name: setting.default}, built.static.texts).text(setting) == setting.default


def test_what_is_described_of_a_node_is_what_its_parts_read() -> None:
    given = {"log.roll.hours": "2", "message.max.bytes": " 007", "delete.topic.enable": "FALSE"}
    built = config.build({**COMPLETE, **given})
    for part in (built.broker, built.lifecycle, built.controller, built.quorum, built.log):
        assert texts_of(part).items() <= built.static.texts.items()
    assert built.log.segment_ms == 7_200_000
    assert built.static.texts["message.max.bytes"] == "7"
    assert built.static.texts["delete.topic.enable"] == "false"
    assert built.static.texts["advertised.listeners"] == "PLAINTEXT://127.0.0.1:9092"


@pytest.mark.parametrize(
    ("given", "retention_ms", "levels"),
    [
        ("", "604800000", ""),
        ("hours=2", "7200000", "hours=2 hours=168"),
        ("hours=2 minutes=3", "180000", "minutes=3 hours=2 hours=168"),
        ("minutes=3 ms=5", "5", "ms=5 minutes=3 hours=168"),
        ("minutes=-1", "-1", "minutes=-1 hours=168"),
    ],
)
def test_the_first_of_several_names_counts(given: str, retention_ms: str, levels: str) -> None:
    def settings(text: str) -> list[tuple[str, str]]:
        pairs = (one.split("=") for one in text.split())
        return [(f"log.retention.{unit}", value) for unit, value in pairs]

    static = StaticConfig(table_of(), dict(settings(given)))
    assert static.texts["log.retention.ms"] == retention_ms
    named = settings(levels)
    sources = [STATIC] * (len(named) - 1) + [DEFAULT]
    found = [(one.name, one.value, one.source) for one in static.levels("log.retention.ms")]
    assert found == [(*one, source) for one, source in zip(named, sources, strict=False)]


def test_a_setting_that_is_told_its_default_is_told() -> None:
    static = StaticConfig(table_of(), {"log.segment.bytes": "1073741824"})
    assert [level.source for level in static.levels("log.segment.bytes")] == [STATIC, DEFAULT]
    assert [level.source for level in static.levels("log.preallocate")] == [DEFAULT]


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("log.retention.hours", "2147483648000000000", "log.retention.hours=2147483648000000000:"),
        ("log.retention.hours", "-2", "log.retention.hours=-2: Value must be at least -1"),
        ("log.retention.ms", "a week", "log.retention.ms=a week: Not a number"),
        ("log.cleanup.policy", "none", "log.cleanup.policy=none: List must be made of"),
        ("compression.type", "best", "compression.type=best: String must be one of"),
    ],
)
def test_a_node_refuses_what_topics_could_not_take(name: str, value: str, problem: str) -> None:
    with pytest.raises(config.ConfigError) as refused:
        config.build({**COMPLETE, name: value})
    assert str(refused.value).startswith(problem)
