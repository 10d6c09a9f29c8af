"""Sends an administrator's requests: to any broker, one broker, or the leaders of partitions.

A failed request is retried for `default_api_timeout_ms`, if a retry is safe: always if the request
only reads; a change only while it is certain that it had no effect.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from typing import Any, Final, Protocol, TypeVar

from quorumlog.backoff import Backoff
from quorumlog.chance import random_fraction
from quorumlog.client.checks import checked_number
from quorumlog.client.core.absences import listed
from quorumlog.client.core.topic_partitions import by_topic
from quorumlog.client.core.waits import Wait
from quorumlog.client.errors import DEFINITE, KafkaError
from quorumlog.client.io.cluster import Cluster, check, labelled
from quorumlog.client.settings import AdminSettings
from quorumlog.wire.codec.error_codes import ErrorCode, known
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.message import Request, ResponseT

Result = TypeVar("Result")
Name = TypeVar("Name", bound=Hashable)
Answers = Mapping[TopicPartition, Result | KafkaError]

LEFT_OUT: Final = "left out of the answer"


class Outcome(Protocol):
    """The part of a response about one subject: a topic, a user, a partition."""

    error_code: int
    error_message: str | None


class Asker:
    """The requests of one administrator, while it is open."""

    def __init__(self, cluster: Cluster, settings: AdminSettings) -> None:
        self.cluster: Final = cluster
        self.settings: Final = settings
        self._backoff: Final = Backoff(
            settings.metadata_retry_backoff_ms, settings.retry_backoff_max_ms
        )

    async def request(
        self,
        request: Request[ResponseT],
        *,
        broker_id: int | None = None,
        version_min: int = 0,
        timeout_ms: float | None = None,
    ) -> ResponseT:
        """Send any request, once, to one broker (None: any), and return the unchecked response.

        Raises KafkaError: BROKER_ID_NOT_REGISTERED at once if the metadata has no such broker.
        """
        if broker_id is not None:
            await self._check_broker(broker_id)
        return await self.cluster.send(
            broker_id, request, version_min=version_min, timeout_ms=timeout_ms
        )

    async def _check_broker(self, broker_id: int) -> None:
        checked_number(broker_id, "a broker id")
        if broker_id not in self.cluster.metadata.nodes:
            await self.cluster.next_update()  # it may have registered since
        nodes = self.cluster.metadata.nodes
        if broker_id not in nodes:
            message = f"broker {broker_id} is not among the live ones: {listed(map(str, nodes))}"
            raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, message, definite=True)

    async def retry(self, attempt: Callable[[], Awaitable[Result]], *, changes: bool) -> Result:
        """Repeat `attempt` until it succeeds; a change only after definite errors.

        Raises the error of the last attempt, or REQUEST_TIMED_OUT.
        """
        deadline_ms = self._deadline_ms()
        failures, last = 0, ""
        with self.cluster.lookout.waiting() as wait:
            while True:
                try:
                    async with asyncio.timeout(max(deadline_ms - self.cluster.now_ms(), 0) / 1000):
                        return await attempt()
                except TimeoutError:
                    raise self._timed_out(last, definite=not changes) from None
                except KafkaError as error:
                    failures += 1
                    delay_ms = self._delay_ms(failures)
                    is_late = self.cluster.now_ms() + delay_ms >= deadline_ms
                    if not error.passing or is_late or (changes and not error.definite):
                        raise
                    wait.fail(error)
                    last = f"; before: {error}"
                    await asyncio.sleep(delay_ms / 1000)

    async def ask(
        self, request: Request[ResponseT], *, changes: bool, timeout_ms: float | None = None
    ) -> ResponseT:
        """Return any broker's response, which has an error code of its own; see `retry`.

        Its error is raised with its message, or else with the name of the API.
        """

        async def attempt() -> ResponseT:
            response = await self.request(request, timeout_ms=timeout_ms)
            answer: Any = response
            message = getattr(answer, "error_message", None)
            check(answer.error_code, message or type(request).__name__.removesuffix("Request"))
            return response

        return await self.retry(attempt, changes=changes)

    async def change_each(
        self,
        request: Request[ResponseT],
        names: Iterable[str],
        outcomes: Callable[[ResponseT], Mapping[str, Outcome]],
    ) -> None:
        """Change the named subjects; see `retry` and `check_all`. `outcomes`: by name."""

        async def attempt() -> None:
            check_all(names, outcomes(await self.request(request)))

        await self.retry(attempt, changes=True)

    async def ask_leaders(
        self,
        partitions: Iterable[TopicPartition],
        ask: Callable[[int, list[TopicPartition]], Awaitable[Answers[Result]]],
        *,
        changes: bool,
    ) -> dict[TopicPartition, Result]:
        """Return a result of each partition's leader, with retries, which must be harmless.

        `ask(broker_id, partitions)` returns a result or an error for each partition. Raises the
        first lasting error, or at the deadline an error that remains; definite if nothing was
        changed.
        """
        wanted = list(partitions)
        for name, indexes in by_topic(wanted).items():
            timeout_ms = self.settings.default_api_timeout_ms
            await self.cluster.topic(name, timeout_ms, holding=indexes)
        with self.cluster.lookout.waiting() as wait:
            return await self._ask_leaders_in_time(wanted, ask, wait, changes=changes)

    async def _ask_leaders_in_time(
        self,
        wanted: list[TopicPartition],
        ask: Callable[[int, list[TopicPartition]], Awaitable[Answers[Result]]],
        wait: Wait,
        *,
        changes: bool,
    ) -> dict[TopicPartition, Result]:
        found: dict[TopicPartition, Result] = {}
        deadline_ms, failures = self._deadline_ms(), 0
        may_have_changed = False
        while True:
            missing = [name for name in wanted if name not in found]
            errors = await self._ask_leaders_once(missing, ask, found)
            if not errors:
                return found
            may_have_changed = may_have_changed or any(not one.definite for one in errors)
            failures += 1
            delay_ms = self._delay_ms(failures)
            staying = [one for one in errors if not one.passing]
            if staying or self.cluster.now_ms() + delay_ms >= deadline_ms:
                error = (staying or errors)[0]
                is_definite = not changes or not (found or may_have_changed)
                raise KafkaError(error.code, error.message, definite=is_definite)
            wait.fail(errors[0])
            self.cluster.request_update()
            await asyncio.sleep(delay_ms / 1000)

    async def _ask_leaders_once(
        self,
        partitions: list[TopicPartition],
        ask: Callable[[int, list[TopicPartition]], Awaitable[Answers[Result]]],
        found: dict[TopicPartition, Result],
    ) -> list[KafkaError]:
        """Call `ask` for each leader once; add the results to `found`, and return the errors."""
        errors: list[KafkaError] = []
        by_leader: dict[int, list[TopicPartition]] = {}
        for name in partitions:
            leader = self.cluster.metadata.leader(name)
            if leader is None:
                code = ErrorCode.LEADER_NOT_AVAILABLE
                errors.append(KafkaError(code, str(name), definite=True))
            else:
                by_leader.setdefault(leader.broker_id, []).append(name)
        asks = [ask(broker_id, part) for broker_id, part in by_leader.items()]
        for part, answers in zip(
            by_leader.values(), await asyncio.gather(*asks, return_exceptions=True), strict=True
        ):
            if isinstance(answers, KafkaError):
                errors.append(answers)
                continue
            if isinstance(answers, BaseException):
                raise answers
            for name in part:
                answer = answers.get(name, left_out(name))
                if isinstance(answer, KafkaError):
                    errors.append(answer)
                else:
                    found[name] = answer
        return errors

    def _deadline_ms(self) -> float:
        return self.cluster.now_ms() + self.settings.default_api_timeout_ms

    def _delay_ms(self, failures: int) -> float:
        return self._backoff.delay_ms(failures, random_fraction())

    def _timed_out(self, last: str, *, definite: bool) -> KafkaError:
        message = f"no answer within {self.settings.default_api_timeout_ms} ms{last}"
        return KafkaError(ErrorCode.REQUEST_TIMED_OUT, message, definite=definite)


def left_out(subject: object) -> KafkaError:
    """Return the error of a response without the part about this subject."""
    message = labelled(subject, LEFT_OUT)
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, message, definite=False)


def check_all(names: Iterable[Name], outcomes: Mapping[Name, Outcome]) -> None:
    """Raise the first error of `names`, in their order.

    The error is definite if the request changed nothing for any name.
    """
    found = [(name, outcomes.get(name)) for name in names]
    is_definite = all(one is not None and known(one.error_code) in DEFINITE for _, one in found)
    for name, one in found:
        if one is None:
            raise left_out(name)
        if one.error_code != ErrorCode.NONE:
            message = labelled(name, one.error_message)
            raise KafkaError(one.error_code, message, definite=is_definite)
