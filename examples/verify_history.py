"""Write down what clients saw, and let it be judged: the last record was acknowledged, then lost.

python examples/verify_history.py
"""
# ruff: noqa: T201 - an example prints

import tempfile

from quorumlog.chaos.history import HistoryWriter, Message
from quorumlog.chaos.verify import verify_history

KEY = "orders-0"  # topic-partition


def write(directory: str, *, is_lost: bool) -> None:
    """Two sends by process 0, acknowledged at offsets 0 and 1; then process 1 reads to the end."""
    with HistoryWriter(directory, meta={"workload": "by hand"}) as history:
        sent = [Message(KEY, offset, value) for offset, value in enumerate((100, 101))]
        for message in sent:
            history.append(0, "invoke", "send", [message._replace(offset=-1)])
            history.append(0, "ok", "send", [message])
        there = sent[:1] if is_lost else sent
        history.append(1, "invoke", "final_poll")
        history.append(1, "ok", "final_poll", there)
        history.append(1, "invoke", "final_end")
        history.append(1, "ok", "final_end", [Message(KEY, len(there), -1)])


def main() -> None:
    """Judge both histories; the second one must not pass."""
    for is_lost in (False, True):
        with tempfile.TemporaryDirectory() as directory:
            write(directory, is_lost=is_lost)
            verdict = verify_history(directory, engine="local").as_json()
        print(f"valid: {verdict['valid']}, anomalies: {list(verdict['anomalies'])}")


if __name__ == "__main__":
    main()
