"""Which topics are mirrored, under which names, and what happens to their copies."""

from dataclasses import replace
from typing import Any

import pytest

from quorumlog.client import AclFilter, ErrorCode, KafkaError
from quorumlog.client.descriptions import Acl, ConfigValue
from quorumlog.mirror.core.copies import Copies
from quorumlog.mirror.core.position_records import Generation
from quorumlog.mirror.core.selection import (
    TopicNames,
    loop_under_same_names,
    returning_prefixes,
    why_no_topic,
)
from quorumlog.mirror.core.topic_acls import missing_acls
from quorumlog.mirror.core.topic_plan import (
    TopicFacts,
    TopicIds,
    TopicPlan,
    copied_configs,
    plan_configs,
    plan_topic,
)
from quorumlog.mirror.io.topics import TopicKeeper
from quorumlog.mirror.reports import Report
from quorumlog.mirror.settings import EXCLUDED_TOPICS, MirrorSettings

OLD, NEW, COPY = b"o" * 16, b"n" * 16, b"c" * 16
NO_ID = bytes(16)


def names(prefix: str = "a.", target_alias: str | None = None, *returning: str) -> TopicNames:
    return TopicNames(
        [".*"],
        EXCLUDED_TOPICS,
        prefix=prefix,
        alias="a",
        target_alias=target_alias,
        returning=returning,
    )


@pytest.mark.parametrize(
    ("topic", "is_copied"),
    [
        ("orders", True),
        ("a.orders", True),  # created with this name: a cluster does not mirror itself
        ("b.orders", False),  # it came from the target
        ("c.b.orders", False),
        ("c.orders", True),
        ("c.a.orders", False),  # it has passed here before
        ("orders.b", True),  # the last part is no alias
        ("x-orders", False),  # a prefix of a mirror from the target
        ("__consumer_offsets", False),
        ("mm2-offsets.b.internal", False),
        ("mirror.b.positions", False),
    ],
)
def test_topics_of_the_cluster_itself_and_of_others_are_copied(topic: str, is_copied: bool) -> None:
    assert (topic in names("a.", "b", "x-")) == is_copied


def test_under_the_same_names_no_part_of_a_name_is_an_alias() -> None:
    assert "c.b.orders" in names("", "b")
    assert names("").copy_of("orders") == "orders"
    assert names("a.").copy_of("orders") == "a.orders"


def generation(source: str | None, *topics: str, prefix: str = "") -> Generation:
    return Generation(
        instance="i",
        started_ms=0,
        source_cluster=source,
        target_cluster="?",
        topics=topics,
        exclude=("__.*",),
        prefix=prefix,
    )


@pytest.mark.parametrize(
    ("other", "is_loop"),
    [
        (generation("target", "orders.*"), True),
        (generation("target", "orders"), True),
        (generation("target", "bills"), False),
        (generation("target", "b.*"), None),
        (generation("target", "orders", prefix="b."), False),
        (generation("elsewhere", "orders"), False),
        (generation(None, "orders"), False),
    ],
)
@pytest.mark.parametrize("own", ["orders", "orders|x"])
def test_two_opposite_mirrors_under_the_same_names_are_a_loop(
    own: str, other: Generation, is_loop: bool | None
) -> None:
    reason = loop_under_same_names([other], "target", generation("source", own))
    if is_loop is None:  # two expressions that share no name are not told apart
        is_loop = own != "orders"
    assert (reason is not None) == is_loop
    assert loop_under_same_names([other], "target", generation("source", own, prefix="p")) is None


def test_prefixes_of_copies_from_the_target_are_found() -> None:
    mirrors = [generation("target", "x", prefix="t-"), generation("other", "x", prefix="o-")]
    assert returning_prefixes(mirrors, "target") == ["t-"]
    assert returning_prefixes(mirrors, None) == []


def facts(topic_id: bytes, partitions: int = 3, replication_factor: int = 3) -> TopicFacts:
    return TopicFacts(
        topic_id=topic_id, partitions=partitions, replication_factor=replication_factor
    )


def plan(
    target: TopicFacts | None,
    recorded: TopicIds | None,
    *,
    source: bytes = OLD,
    follows: bool = False,
    replication_factor: int | None = None,
) -> TopicPlan:
    return plan_topic(
        facts(source),
        target,
        recorded,
        brokers=2,
        replication_factor=replication_factor,
        follows=follows,
    )


KNOWN = TopicIds(source=OLD, target=COPY)


def test_a_new_topic_gets_equal_partitions_and_replicas_as_far_as_there_are_brokers() -> None:
    assert plan(None, None) == TopicPlan(create=(3, 2))
    assert plan(None, None, replication_factor=1) == TopicPlan(create=(3, 1))


def test_a_copy_grows_and_never_shrinks() -> None:
    assert plan(facts(COPY, 2), KNOWN) == TopicPlan(grow_to=3)
    assert plan(facts(COPY, 3), KNOWN) == TopicPlan()
    assert plan(facts(COPY, 4), KNOWN) == TopicPlan()


@pytest.mark.parametrize(
    ("source", "target", "sentence"),
    [
        (NEW, facts(COPY), "the topic was deleted and created again at the source"),
        (OLD, None, "its copy was deleted at the target"),
        (OLD, facts(NEW), "its copy was deleted and created again at the target"),
    ],
)
def test_a_topic_or_copy_that_was_replaced_stops_or_restarts(
    source: bytes, target: TopicFacts | None, sentence: str
) -> None:
    stopped = plan(target, KNOWN, source=source)
    assert stopped.stop is not None
    assert stopped.stop.startswith(sentence)
    followed = plan(target, KNOWN, source=source, follows=True)
    assert followed.restart
    assert followed.stop is None
    assert (followed.create is None) == (target is not None)
    assert (followed.notice or "").startswith(sentence)


def test_brokers_without_topic_ids_replace_no_topic() -> None:
    assert plan(facts(NO_ID), TopicIds(), source=NO_ID) == TopicPlan()
    assert plan(facts(COPY), TopicIds(), source=NEW) == TopicPlan()


@pytest.mark.parametrize(
    ("expressions", "names_at_source", "reason"),
    [
        (["a"], [], "matches a: it has none that this user may describe"),
        (["a", "b"], ["x"], "matches a or b: this user may describe x"),
        (["a"], ["x1", "x2", "x3", "x4", "x5", "x6", "x7"], "x1, x2, x3, x4, x5 and 2 more"),
        (["a"], ["x.a", "y"], "matches a: an expression must match the whole name, such as x.a"),
        ([".*"], ["a.b"], "but topics that are excluded or copies of the target's: a.b"),
    ],
)
def test_the_reason_for_no_topic_shows_the_mistake(
    expressions: list[str], names_at_source: list[str], reason: str
) -> None:
    assert why_no_topic(expressions, names_at_source).endswith(reason)


def config(value: str, source: int = 1) -> ConfigValue:
    return ConfigValue(value=value, source=source, is_read_only=False, is_sensitive=False)


def test_settings_of_the_topic_are_copied_and_those_of_the_cluster_are_not() -> None:
    source = {
        "retention.ms": config("7"),
        "cleanup.policy": config("compact"),
        "min.insync.replicas": config("2"),
        "segment.bytes": config("99", source=5),
    }
    assert copied_configs(source) == {"cleanup.policy": "compact", "retention.ms": "7"}
    target = {"retention.ms": config("8"), "max.message.bytes": config("1")}
    change = plan_configs(source, target)
    assert change.values == {"cleanup.policy": "compact", "retention.ms": "7"}
    assert change.delete == ("max.message.bytes",)
    assert not plan_configs(source, {**source, "min.insync.replicas": config("1")})


def acl(topic: str, operation: str, permission: str = "allow", **changes: str) -> Acl:
    fields = {"principal": "User:a", "host": "10.0.0.1"} | changes
    return Acl(
        resource_type="topic",
        resource_name=topic,
        operation=operation,
        permission=permission,
        **fields,
    )


@pytest.mark.parametrize(
    ("source", "copied"),
    [
        (acl("orders", "read"), acl("a.orders", "read")),
        (acl("orders", "write"), None),
        (acl("orders", "write", "deny"), acl("a.orders", "write", "deny")),
        (acl("orders", "all"), acl("a.orders", "read")),
        (acl("orders", "all", "deny"), acl("a.orders", "all", "deny")),
        (acl("orders", "alter_configs"), acl("a.orders", "alter_configs")),
        (acl("orders", "read", host="*"), acl("a.orders", "read", host="*")),
        (acl("orders", "read", pattern_type="prefixed"), None),
        (acl("*", "read"), None),
        (acl("bills", "read"), None),  # it is not mirrored
        (replace(acl("orders", "read"), resource_type="group"), None),
    ],
)
def test_acls_are_copied_by_the_rules_of_mirrormaker(source: Acl, copied: Acl | None) -> None:
    wanted = [] if copied is None else [copied]
    assert missing_acls([source], [], {"orders": "a.orders"}) == wanted
    assert missing_acls([source], wanted, {"orders": "a.orders"}) == []


def test_two_acls_with_one_copy_are_created_once() -> None:
    both = [acl("orders", "all"), acl("orders", "read")]
    assert missing_acls(both, [], {"orders": "a.orders"}) == [acl("a.orders", "read")]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"topics": ()}, "regular expression of topics"),
        ({"topics": ("t", "")}, "that is not empty"),
        ({"topics": ("(",)}, "is no regular expression"),
        ({"alias": "a b"}, "alias 'a b'"),
        ({"alias": ""}, "alias ''"),
        ({"prefix": "ä"}, "prefix 'ä'"),
        ({"mm2_compatible": True}, "needs a target_alias"),
        ({"group_interval_ms": 0}, "group_interval_ms must be above 0"),
    ],
)
def test_wrong_settings_are_refused(changes: dict[str, object], sentence: str) -> None:
    values: dict[str, object] = {"source": {}, "target": {}, "topics": ("t",)}
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(")):
        MirrorSettings(**values | changes)  # type: ignore[arg-type]


class SideWithoutAcls:
    async def describe_acls(self, _: AclFilter) -> list[Acl]:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, "no authorizer", definite=True)


async def test_a_side_without_an_authorizer_is_reported_once_and_the_topics_are_copied() -> None:
    reports: list[Report] = []
    side: Any = SideWithoutAcls()
    wanted = MirrorSettings(source={}, target={}, topics=("t",), acls=True)
    keeper = TopicKeeper(wanted, side, side, Copies(), names(), reports.append)
    await keeper.configure_all()
    await keeper.configure_all()
    assert [str(one) for one in reports] == [
        "ACLs: not copied: a side has no ACLs: SECURITY_DISABLED: no authorizer"
    ]
