"""The line that tells what clients have done, for workloads that send and for those that do not."""

from collections import Counter

from quorumlog.chaos.run.figures import figures


def test_a_workload_that_sends_is_told_by_sends_and_reads() -> None:
    messages = Counter(
        {
            ("invoke", "send"): 9,
            ("ok", "send"): 6,
            ("info", "send"): 2,
            ("fail", "send"): 1,
            ("ok", "poll"): 5,
            ("ok", "final_poll"): 7,
            ("invoke", "commit"): 3,
        }
    )
    assert figures(messages) == "6 sends acknowledged, 2 unknown, 1 failed; 12 records read"


def test_a_workload_that_does_not_send_is_told_by_each_kind_of_operation() -> None:
    messages = {
        ("invoke", "delete"): 4,
        ("ok", "delete"): 3,
        ("info", "delete"): 1,
        ("invoke", "create"): 2,
        ("ok", "create"): 2,
    }
    told = "2 create done, 0 unknown, 0 failed; 3 delete done, 1 unknown, 0 failed"
    assert figures(messages) == told


def test_before_the_first_operation_there_is_nothing_yet() -> None:
    assert figures({}) == "0 sends acknowledged, 0 unknown, 0 failed; 0 records read"
