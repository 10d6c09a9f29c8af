"""Events and messages on one line each, in KRaft's words."""

from dataclasses import fields
from typing import Any, Final

from quorumlog.metadata_quorum.core import events
from quorumlog.metadata_quorum.core.messages import FetchRequest, Request, VoteRequest

_RARE: Final = frozenset({"is_new", "leader_address", "voter_sets", "was_voter", "write_ms"})


def render_event(event: events.Event) -> str:
    """Return what a node learned."""
    match event:
        case events.RequestReceived(request=request):
            return f"asked {render_request(request)}"
        case events.ResponseReceived(source=source, response=response, records=records):
            held = f" records=[{records.base_offset},{records.end_offset})" if records else ""
            return f"<- {source} {render_value(response)}{held}"
        case _:
            return render_value(event)


def render_request(request: Request) -> str:
    """Return what a node asks."""
    match request:
        case VoteRequest(replica_epoch=epoch, last_offset=end, last_offset_epoch=last_epoch):
            name = "PreVote" if request.pre_vote else "Vote"
            return f"{name} epoch={epoch} log_ends={end}@{last_epoch}"
        case FetchRequest(current_leader_epoch=epoch, fetch_offset=end, last_fetched_epoch=last):
            return f"Fetch epoch={epoch} from={end}@{last} high_watermark={request.high_watermark}"
        case _:
            return render_value(request)


def render_value(value: Any) -> str:
    """Return the name of a dataclass, and the fields that say something."""
    shown = [type(value).__name__]
    for one in fields(value):
        content = getattr(value, one.name)
        if one.name == "request_id" or content is None:
            continue
        if one.name in _RARE and not content:
            continue  # as almost always
        if isinstance(content, tuple):
            content = ",".join(map(str, content))
        elif hasattr(content, "end_offset"):
            content = f"{content.epoch}@{content.end_offset}"
        shown.append(f"{one.name}={getattr(content, 'name', content)}")
    return " ".join(shown)


def render_step(event: events.Event, role: str, state: tuple[int, int, int, int]) -> str:
    """Return what a node learned and what it was afterwards."""
    epoch, end, flushed, committed = state
    shown = f"epoch={epoch} end={end} flushed={flushed} committed={committed}"
    return f"{render_event(event)} => {role} {shown}"
