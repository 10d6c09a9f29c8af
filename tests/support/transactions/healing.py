"""The end of a schedule: nothing fails any more."""

from tests.support.transactions.world import World


def heal(world: World) -> None:
    """Everything that was begun ends, and all can begin anew."""
    for _ in range(20):
        while world.coordination.asked_for:
            world.allocate()
        while world.coordination.writes:
            world.end_write()
        while world.network.messages:
            world.deliver(0, "written")
        while world.network.answers:
            world.answer(0)
        world.let_time_pass(1000)
    while world.network.late:
        world.network.deliver_late()
    assert not world.under_way, "everything ends"
    assert not world.asked, "every request is answered"
    world.check()
    for name, model in world.models.items():
        assert model.phase == "idle", f"c: {name} is {model.state}"
    open_data = [one.data for one in world.partitions.values() if one.data]
    assert not open_data, f"c: {open_data} is open for ever"
