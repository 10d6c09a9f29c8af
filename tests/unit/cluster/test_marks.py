"""The changes that return a cluster to a mark."""

from dataclasses import replace
from typing import Any

from quorumlog.client.descriptions import Acl, ScramCredential
from quorumlog.cluster.marks import NEW_CLUSTER, Mark, TopicMark, changes_to, new_cluster

READ = Acl(resource_type="topic", resource_name="t", principal="User:a", operation="read")
WRITE = replace(READ, operation="write")
SHA = (ScramCredential(mechanism="SCRAM-SHA-256", iterations=4096),)


def topic(number: int = 1, start: int = 0, end: int = 0) -> TopicMark:
    return TopicMark(topic_id=bytes([number]), replicas={0: (1, 2, 3)}, records={0: (start, end)})


def nothing(**given: Any) -> dict[str, Any]:
    empty: dict[str, Any] = dict.fromkeys(
        ("refusals", "deleted_topics", "deleted_groups", "deleted_users", "deleted_acls"), ()
    )
    empty |= {"created_acls": (), "created_topics": {}, "created_settings": {}, "moved": {}}
    empty |= {"offsets": {}, "lost_offsets": {}, "settings": {}, "quotas": {}}
    return {**empty, **given}


def changes(mark: Mark, now: Mark) -> dict[str, Any]:
    found = changes_to(mark, now)
    return {name: getattr(found, name) for name in found.__dataclass_fields__}


def test_an_unchanged_cluster_stays_as_it_is() -> None:
    mark = Mark(
        topics={"t": topic(end=5)},
        groups={"g": {("t", 0): 5}},
        settings={("topic", "t"): {"retention.ms": "5"}},
        quotas={(("user", "a"),): {"producer_byte_rate": 5.0}},
        users={"a": SHA},
        acls=frozenset({READ}),
    )
    assert changes(mark, mark) == nothing()


def test_without_a_mark_all_contents_go() -> None:
    now = Mark(
        topics={"t": topic(end=5)},
        groups={"g": {}},
        settings={("topic", "t"): {"retention.ms": "5"}, ("broker", ""): {"log.roll.ms": "7"}},
        quotas={(("user", "a"),): {"producer_byte_rate": 5.0}},
        users={"a": SHA},
        acls=frozenset({READ, WRITE}),
    )
    assert changes(NEW_CLUSTER, now) == nothing(
        deleted_topics=("t",),
        deleted_groups=("g",),
        settings={("broker", ""): ({}, ("log.roll.ms",))},
        quotas={(("user", "a"),): ({}, ("producer_byte_rate",))},
        deleted_users=(("a", "SCRAM-SHA-256"),),
        deleted_acls=(READ, WRITE),
    )


def test_a_topic_that_was_empty_and_has_grown_is_created_anew_with_its_settings() -> None:
    mark = Mark(
        topics={"t": topic()},
        groups={"g": {("t", 0): 0}},
        settings={("topic", "t"): {"retention.ms": "5"}},
    )
    now = replace(mark, topics={"t": topic(end=3)}, groups={"g": {("t", 0): 3}}, settings={})
    assert changes(mark, now) == nothing(
        deleted_topics=("t",),
        created_topics={"t": topic()},
        created_settings={"t": {"retention.ms": "5"}},
        offsets={"g": {("t", 0): 0}},  # the deletion takes the committed ones along
    )
    assert changes(mark, replace(now, topics={}))["created_topics"] == {"t": topic()}
    assert changes(mark, replace(now, topics={}))["deleted_topics"] == ()


def test_records_that_a_mark_lacks_are_refused() -> None:
    mark = Mark(topics={"t": topic(end=3), "u": topic(2, end=1)}, users={"a": SHA})
    now = Mark(topics={"t": topic(end=5), "u": topic(7, end=1)})
    assert changes_to(mark, now).refusals == (
        "topic t had the records 0: [0, 3) and has 0: [0, 5)",
        "topic u, which had records at the mark, was deleted",
        "the SCRAM-SHA-256 password of user a was deleted",
    )


def test_replicas_of_a_topic_with_records_move_back() -> None:
    filled, empty = topic(1, end=5), topic(2)
    mark = Mark(topics={"filled": filled, "empty": empty})
    now = {name: replace(one, replicas={0: (2, 1)}) for name, one in mark.topics.items()}
    assert changes(mark, Mark(topics=now)) == nothing(
        moved={("filled", 0): (1, 2, 3)}, deleted_topics=("empty",), created_topics={"empty": empty}
    )


def test_offsets_are_committed_again_and_later_ones_deleted() -> None:
    mark = Mark(topics={"t": topic(end=9)}, groups={"g": {("t", 0): 4}, "gone": {("t", 0): 1}})
    now = replace(mark, groups={"g": {("t", 0): 9, ("t", 1): 2}, "new": {}})
    assert changes(mark, now) == nothing(
        deleted_groups=("new",),
        offsets={"g": {("t", 0): 4}, "gone": {("t", 0): 1}},
        lost_offsets={"g": (("t", 1),)},
    )


def test_settings_quotas_and_acls_return_to_their_values() -> None:
    user = (("user", "a"),)
    mark = Mark(
        settings={("broker", ""): {"a": "1"}}, quotas={user: {"x": 1.0}}, acls=frozenset({READ})
    )
    now = Mark(
        settings={("broker", ""): {"a": "2", "b": "3"}},
        quotas={user: {"x": 2.0, "y": 3.0}},
        acls=frozenset({WRITE}),
    )
    assert changes(mark, now) == nothing(
        settings={("broker", ""): ({"a": "1"}, ("b",))},
        quotas={user: ({"x": 1.0}, ("y",))},
        deleted_acls=(WRITE,),
        created_acls=(READ,),
    )


def test_a_new_cluster_has_min_insync_replicas_where_its_metadata_has_it() -> None:
    everywhere = ("broker", "")
    now = Mark(settings={everywhere: {"min.insync.replicas": "2", "log.roll.ms": "5"}})
    assert new_cluster(now, {}).settings == {everywhere: {"min.insync.replicas": "1"}}
    config = {"min.insync.replicas": "2"}
    assert changes(new_cluster(now, config), now) == nothing(
        settings={everywhere: (config, ("log.roll.ms",))}
    )
    assert new_cluster(Mark(), config) == NEW_CLUSTER


def test_the_users_of_a_new_cluster_stay_and_others_go() -> None:
    credentials = (ScramCredential(mechanism="SCRAM-SHA-256", iterations=4096),)
    now = Mark(users={"alice": credentials, "eve": credentials})
    found = changes(new_cluster(now, {}, {"alice", "admin"}), now)
    assert found == nothing(deleted_users=(("eve", "SCRAM-SHA-256"),))
