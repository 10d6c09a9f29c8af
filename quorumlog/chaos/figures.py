"""What clients have done so far, in one line: sends and reads, or each kind of operation."""

from collections.abc import Mapping


def figures(messages: Mapping[tuple[str, str], int]) -> str:
    """Count by outcome. `messages`: how many a history has, by (type, f); 0 may be left out.

    A workload that sends is told by its sends and by the records that polls returned; another one
    by each kind of its operations.
    """
    kinds = sorted({f for type_, f in messages if type_ == "invoke" and messages[type_, f]})
    if not kinds or "send" in kinds:
        return (
            f"{_outcomes(messages, 'send', 'sends acknowledged')}; {_read(messages)} records read"
        )
    return "; ".join(_outcomes(messages, f, f"{f} done") for f in kinds)


def _outcomes(messages: Mapping[tuple[str, str], int], f: str, done: str) -> str:
    ok, info, fail = (messages.get((type_, f), 0) for type_ in ("ok", "info", "fail"))
    return f"{ok} {done}, {info} unknown, {fail} failed"


def _read(messages: Mapping[tuple[str, str], int]) -> int:
    return messages.get(("ok", "poll"), 0) + messages.get(("ok", "final_poll"), 0)
