"""Which actions hold a node down or paused, when faults overlap."""

from quorumlog.chaos.held_nodes import HeldNodes, Hold


def test_a_node_is_killed_once_and_started_by_the_last() -> None:
    held = HeldNodes[str]()
    assert held.take("kill", [1, 2], "a") == (1, 2)
    assert held.take("stop", [2, 3], "b") == (3,)
    assert held.begin_to_undo("start", [1, 2], "a") == (1,)
    assert held.end_undoing("start", [1], "a") == (1,)
    assert [held.is_down(node_id) for node_id in (1, 2, 3)] == [False, True, True]
    assert held.held_by("start", [1, 2, 3], "b") == (2, 3)
    assert held.begin_to_undo("start", [2, 3], "b") == (2, 3)


def test_a_node_that_is_just_starting_is_killed_again() -> None:
    held = HeldNodes[str]()
    held.take("kill", [1], "a")
    held.begin_to_undo("start", [1], "a")
    assert held.take("kill", [1], "b") == (1,)
    assert held.held_by("start", [1], "a") == ()
    assert held.begin_to_undo("start", [1], "b") == (1,)
    assert held.end_undoing("start", [1], "a") == ()
    assert held.is_down(1)
    assert held.end_undoing("start", [1], "b") == (1,)
    assert not held.is_down(1)


def test_the_last_to_let_go_undoes_it_also_while_the_first_undoes_more() -> None:
    held = HeldNodes[str]()
    held.take("kill", [1, 2], "a")
    held.take("kill", [1], "b")
    assert held.begin_to_undo("start", [1, 2], "a") == (2,)
    assert held.begin_to_undo("start", [1], "b") == (1,)


def test_a_kill_that_came_too_early_leaves_the_node_to_the_one_that_starts_it() -> None:
    held = HeldNodes[str]()
    held.take("kill", [1, 2], "a")
    held.begin_to_undo("start", [1], "a")
    held.take("kill", [1], "b")
    held.give_back("kill", [1])
    assert held.held_by("start", [1], "a") == (1,)
    held.give_back("kill", [2])
    assert not held.is_down(2)


def test_what_held_a_process_ends_with_it() -> None:
    held = HeldNodes[str]()
    held.take("pause", [1, 2], "a")
    held.take("fill_disk", [1], "c")
    held.take("kill", [1], "b")
    assert held.died([1]) == [Hold("resume", 1, "a")]
    assert held.held_by("resume", [1, 2], "a") == (2,)
    assert held.held_by("free_disk", [1], "c") == (1,)
    held.clear()
    assert not held.is_held(1)
