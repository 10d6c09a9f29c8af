"""Rules of reads: the records of fetches, leader epochs in requests, equal answers of versions."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from quorumlog.chaos.checkers.wire.appends import Add
from quorumlog.chaos.checkers.wire.facts import (
    Batch,
    Fetch,
    GroupCommit,
    GroupOffset,
    KeyFacts,
    Lookup,
)
from quorumlog.chaos.checkers.wire.final_log import FinalLog, SentRecords, changed_parts
from quorumlog.chaos.history.exchanges import FAR_AHEAD, FAR_OFFSET, NO_PAIR
from quorumlog.wire.codec.error_codes import ErrorCode


def check_complete(facts: KeyFacts, add: Add) -> None:
    """Check that each response has the partition of its request, unless a session leaves it out."""
    answered: list[Batch | Lookup | GroupCommit | GroupOffset | Fetch] = [
        *(one for one in facts.batches if one.acks != 0),
        *facts.lookups,
        *facts.commits,
        *facts.group_offsets,
        *(one for one in facts.fetches if one.is_full and one.top_error == 0),
    ]
    for one in answered:
        if one.exchange.is_answered and one.error is None:
            add("no-answer", "the response leaves the partition out", ("received", one.row))


def check_reads(facts: KeyFacts, sent: SentRecords, log: FinalLog, add: Add) -> Iterator[str]:
    """Apply all rules; yield the name of each rule that judged a response."""
    for fetch in facts.fetches:
        if fetch.corrupt:
            add("corrupt-batch", fetch.corrupt, ("fetched", fetch.row))
        elif fetch.is_good:
            yield "fetch"
            _check_records(fetch, add)
            _check_content(fetch, sent, log, add)
    yield from _check_epochs([*facts.fetches, *facts.lookups], add)
    yield from _check_pairs(facts, add)


def _check_records(fetch: Fetch, add: Add) -> None:
    """Check the offsets: from the requested one on, without a gap, below the high watermark."""
    told = ("fetched", fetch.row)
    if fetch.offset >= FAR_OFFSET:
        add("out-of-range-accepted", f"offset {fetch.offset} is no error", told)
    if not fetch.spans:
        return
    first, last = fetch.spans[0]
    if not first <= fetch.offset <= last:
        note = f"the records begin with a batch [{first}, {last}], not with offset {fetch.offset}"
        add("fetch-skips", note, told)
    for (_, before), (after, _) in pairwise(fetch.spans):
        if after != before + 1:
            add("fetch-skips", f"offset {after} comes after {before}", told)
    if fetch.next_offset > fetch.high_watermark:
        note = f"record {fetch.next_offset - 1}, and the high watermark is {fetch.high_watermark}"
        add("uncommitted-read", note, told)


def _check_content(fetch: Fetch, sent: SentRecords, log: FinalLog, add: Add) -> None:
    """Compare the records with those that were sent, and with the final log."""
    told = ("fetched", fetch.row)
    for one in fetch.records:
        digest = sent.digests.get(one.value)
        if digest is None:
            add("never-sent", f"offset {one.offset}: nobody sent it", told)
        elif digest != one.digest:
            attempt = ("sent", sent.attempts[one.value][0].row)
            note = f"offset {one.offset}: {changed_parts(digest, one.digest)} differ"
            add("changed-record", note, attempt, told)
        final = log.records.get(one.offset)
        is_lost = log.is_whole and (final is None or final.value != one.value)
        if is_lost and log.row is not None:
            note = f"value {one.value} was read at {one.offset}, the final log has another there"
            add("read-vanished", note, told, ("final", log.row))


def _check_epochs(asked: Sequence[Fetch | Lookup], add: Add) -> Iterator[str]:
    """Check the leader epochs in requests: a process that leads in an epoch refuses others.

    It has confirmed an epoch when it answered a request with that epoch without an error.
    """
    newest: dict[tuple[int, int], Fetch | Lookup] = {}  # by node and connection
    for one in sorted(asked, key=lambda each: (each.exchange.sent_ns, each.exchange.place)):
        if one.asked_epoch < 0 or one.error is None or not one.exchange.is_answered:
            continue
        place = one.exchange.node, one.exchange.connection
        before = newest.get(place)
        if one.asked_epoch >= FAR_AHEAD:
            yield "unknown-epoch"
            _check_ahead(one, add)
        elif before is not None and one.asked_epoch < before.asked_epoch:
            yield "old-epoch"
            _check_old(before, one, add)
        elif one.error == 0:
            newest[place] = one


def _check_ahead(one: Fetch | Lookup, add: Add) -> None:
    if one.error == 0:
        note = f"leader epoch {one.asked_epoch} does not exist, and was accepted"
        add("unknown-epoch-accepted", note, ("accepted", one.row))
    elif one.error == ErrorCode.FENCED_LEADER_EPOCH:
        note = f"leader epoch {one.asked_epoch} does not exist, and was called old"
        add("wrong-error", note, ("refused", one.row))


def _check_old(before: Fetch | Lookup, one: Fetch | Lookup, add: Add) -> None:
    if one.error == 0:
        note = f"leader epoch {one.asked_epoch} was accepted after {before.asked_epoch}"
        add("stale-epoch-accepted", note, ("newer", before.row), ("accepted", one.row))
    elif one.error == ErrorCode.UNKNOWN_LEADER_EPOCH:
        note = f"the old leader epoch {one.asked_epoch} was called unknown"
        add("wrong-error", note, ("newer", before.row), ("refused", one.row))


Answer = tuple[object, ...]
Paired = Fetch | Lookup | GroupOffset


def _check_pairs(facts: KeyFacts, add: Add) -> Iterator[str]:
    """Compare the answers to one request in two versions, one right behind the other."""
    pairs: dict[int, list[Paired]] = defaultdict(list)
    answered: list[Paired] = [*facts.fetches, *facts.lookups, *facts.group_offsets]
    for one in answered:
        if one.pair != NO_PAIR and one.error == 0:
            pairs[one.pair].append(one)
    for group in pairs.values():
        for first, second in pairwise(group):
            answers = _answer(first), _answer(second)
            if answers[0] == ():
                continue
            yield "versions"
            if answers[0] != answers[1]:
                versions = first.exchange.version, second.exchange.version
                note = f"version {versions[0]} answers {answers[0]}, {versions[1]} {answers[1]}"
                add("versions-differ", note, ("first", first.row), ("second", second.row))


def _answer(one: Paired) -> Answer:
    """Return the part of an answer that does not change while the log grows; (): none yet."""
    match one:
        case Fetch():
            return one.records[:1]
        case Lookup():
            return () if one.offset < 0 else (one.offset, one.found_timestamp)
        case GroupOffset():
            return (one.offset,)
