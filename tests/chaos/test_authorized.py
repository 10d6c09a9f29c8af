"""The checker of rights and passwords: which histories it must refuse, and which prove nothing."""

import pytest

from quorumlog.chaos.checkers import Verdict, check_history
from quorumlog.chaos.checkers.checker import Facts
from quorumlog.chaos.checkers.registry import judges_of
from quorumlog.chaos.history import Message
from tests.support.chaos.hand_made_histories import STEP_NS, History, found

NO_RIGHT = "TOPIC_AUTHORIZATION_FAILED: x"
NO_LOGIN = "SASL_AUTHENTICATION_FAILED: wrong password"
SESSION_MS = 2_000
ADMIN, SENDER, READER, LOGIN = 100, 4, 5, 6
SECOND_NS = 1_000_000_000


class Access(History):
    """The user u, its clients with password 1, and an administrator of its rights to topic x."""

    def __init__(self) -> None:
        super().__init__()
        self.password(1)
        for process in (SENDER, READER):
            self.op(process, "open", [("u", -1, 1)])
        self.values = self.refused = 0

    def _of(self, f: str, *micros: Message, outcome: str = "ok") -> "Access":
        self.op(ADMIN, f, outcome=outcome)
        self.ops[-1].micros = [*micros]
        return self

    def right(self, right: str, value: int, outcome: str = "ok") -> "Access":
        return self._of("access", Message("u@x", -1, value, f=f"allow_{right}"), outcome=outcome)

    def password(self, number: int, outcome: str = "ok") -> "Access":
        lifetime = Message("u", -1, SESSION_MS, f="session_ms")
        return self._of("password", Message("u", -1, number), lifetime, outcome=outcome)

    def write(self, error: str = "") -> "Access":
        offset = -1 if error else self.values
        self.refused += bool(error)
        value = 1000 + self.refused if error else offset
        self.send(value, offset, process=SENDER)
        self.ops[-1].outcome, self.ops[-1].error = "fail" if error else "ok", error
        self.values += not error
        return self

    def read(self, records: int, error: str = "") -> "Access":
        self.op(READER, "read", [("x-0", -1, records)], "fail" if error else "ok", error=error)
        return self

    def login(self, number: int, error: str = "") -> "Access":
        self.op(LOGIN, "login", [("u", -1, number)], "fail" if error else "ok", error=error)
        return self

    def later(self, seconds: float) -> "Access":
        self.now_ns += int(seconds * SECOND_NS)
        return self

    def during_the_last(self, f: str) -> "Access":
        """Let the last operation lie in the change before it, of kind `f`."""
        change = next(op for op in reversed(self.ops) if op.f == f)
        op, end_ns = self.ops[-1], change.start_ns + STEP_NS
        op.start_ns, op.end_ns = change.start_ns + STEP_NS // 4, change.start_ns + STEP_NS // 2
        change.end_ns = end_ns
        return self


def judged(history: Access) -> Verdict:
    """Judge it after one certain use of each kind, and with final reads."""
    history.final(*((value, value) for value in range(history.values)), end=history.values)
    table = history.table(dense=True)
    assert [one.model for one in judges_of("authorized", Facts())] == ["authorized", "kafka_log"]
    return check_history(table, "authorized")


def used() -> Access:
    """Each right was denied, then granted, and both were kept."""
    history = Access().right("write", 0).right("read", 0).write(NO_RIGHT).read(0, NO_RIGHT)
    return history.right("write", 1).right("read", 1).write().read(1).login(1).login(2, NO_LOGIN)


VALID = {
    "kept": used(),
    "accepted during a denial": used().right("write", 0).write().during_the_last("access"),
    "refused during a grant": (
        used().right("write", 0).right("write", 1).write(NO_RIGHT).during_the_last("access")
    ),
    "after an unknown change": used().right("write", 0, "info").write().write(NO_RIGHT),
    "a known change after an unknown one": (
        used().right("write", 0, "info").right("write", 1).write(NO_RIGHT)
    ),
    "a change that failed": used().right("write", 0, "fail").write(),
    "the other right": used().right("read", 0).write().read(0, NO_RIGHT),
    "nothing read": used().right("read", 0).read(0),
    "refused for another reason": used().write("REQUEST_TIMED_OUT: x").read(0, NO_LOGIN),
    "a session that lasts": used().password(2).later(1.5).write().login(2).login(1, NO_LOGIN),
    "an old password during the change": used().password(2).login(1).during_the_last("password"),
    "after an unknown password": used().password(2, "info").login(1).login(2, NO_LOGIN).later(9),
    "nothing read after a session": used().password(2).later(SESSION_MS / 1000 + 1.1).read(0),
    "a deleted password": used().password(0).login(1, NO_LOGIN),
}
INVALID = {
    "denied-write-accepted": used().right("write", 0).write(),
    "denied-read-answered": used().right("read", 0).read(1),
    "permitted-refused": used().write(NO_RIGHT),
    "old-password-accepted": used().password(2).login(1),
    "password-refused": used().password(2).login(2, NO_LOGIN),
    "session-outlived": used().password(2).later(SESSION_MS / 1000 + 1.1).write(),
}


@pytest.mark.parametrize("name", VALID)
def test_a_history_that_keeps_the_rules_or_proves_nothing_is_valid(name: str) -> None:
    verdict = judged(VALID[name])
    assert (verdict.valid, found(verdict)) == (True, []), verdict.as_json()
    assert verdict.figures["judged_allowed"] >= 2
    assert verdict.figures["judged_denied"] >= 2


@pytest.mark.parametrize("name", INVALID)
def test_each_anomaly_has_a_witness(name: str) -> None:
    verdict = judged(INVALID[name])
    assert (verdict.valid, found(verdict)) == (False, [name]), verdict.as_json()
    [result] = [one for one in verdict.results if one.name == name]
    assert len(result.witnesses[0]["ops"]) == 2
    assert name in verdict.meanings


def test_a_read_that_was_refused_is_found_too_and_other_reads_are_no_writes() -> None:
    assert found(judged(used().read(0, NO_RIGHT))) == ["permitted-refused"]
    deleted = used().password(0).later(SESSION_MS / 1000 + 1.1).read(1)
    assert found(judged(deleted)) == ["session-outlived"]
    assert found(judged(used().password(0).login(1))) == ["old-password-accepted"]


def test_a_record_of_a_refused_send_that_is_read_is_a_finding_of_the_log() -> None:
    history = used().right("write", 0).write(NO_RIGHT)
    history.values += 1
    history.ops[-1].messages = [("x-0", -1, history.values - 1)]
    assert found(judged(history)) == ["G1a"]


def test_without_a_judged_operation_nothing_is_proved() -> None:
    verdict = judged(Access().right("write", 1).write())
    assert verdict.valid == "unknown"
    assert "no operation was certainly denied" in verdict.unknown_because
