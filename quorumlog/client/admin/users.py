"""SCRAM credentials: described, set and deleted. Source: KIP-554, RFC 5802."""

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from quorumlog.chance import random_bytes
from quorumlog.client import descriptions as about
from quorumlog.client.admin.asker import Asker
from quorumlog.client.checks import checked_all, checked_names, code_of, word_of
from quorumlog.client.io.cluster import check, labelled
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages import alter_user_scram_credentials as alter_
from quorumlog.wire.codec.messages import describe_user_scram_credentials as describe_
from quorumlog.wire.codec.sasl import salted_password

MECHANISMS: Final[Mapping[str, int]] = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_HASHES: Final[Mapping[int, str]] = {1: "sha256", 2: "sha512"}
_SALT_BYTES: Final = 32


async def describe(
    asker: Asker, users: Iterable[str] | None
) -> dict[str, tuple[about.ScramCredential, ...]]:
    """See Admin.describe_user_scram_credentials."""
    wanted = None if users is None else checked_names(users, "users")
    named = None if wanted is None else [describe_.UserName(name=user) for user in wanted]
    request = describe_.DescribeUserScramCredentialsRequest(users=named)

    async def attempt() -> dict[str, tuple[about.ScramCredential, ...]]:
        response = await asker.request(request)
        check(response.error_code, response.error_message or "DescribeUserScramCredentials")
        found = dict[str, tuple[about.ScramCredential, ...]]()
        for one in sorted(response.results, key=lambda result: result.user):
            if one.error_code == ErrorCode.RESOURCE_NOT_FOUND:
                found[one.user] = ()
                continue
            check(one.error_code, labelled(one.user, one.error_message))
            found[one.user] = tuple(
                about.ScramCredential(
                    mechanism=word_of(MECHANISMS, info.mechanism), iterations=info.iterations
                )
                for info in sorted(one.credential_infos, key=lambda info: info.mechanism)
            )
        return found

    return await asker.retry(attempt, changes=False)


async def alter(
    asker: Asker,
    upsertions: Iterable[about.NewScramCredential],
    deletions: Iterable[tuple[str, str]],
) -> None:
    """See Admin.alter_user_scram_credentials."""
    new = checked_all(upsertions, about.NewScramCredential, "NewScramCredential")
    pairs = checked_all(deletions, tuple, "(user, mechanism)")
    gone = [(user, code_of(MECHANISMS, mechanism, "mechanism")) for user, mechanism in pairs]
    if not new and not gone:
        raise ValueError("no credential is given: upsertions or deletions")
    request = alter_.AlterUserScramCredentialsRequest(
        upsertions=[await _upsertion(one) for one in new],
        deletions=[alter_.ScramCredentialDeletion(name=u, mechanism=code) for u, code in gone],
    )
    names = list(dict.fromkeys([*(one.user for one in new), *(user for user, _ in gone)]))

    await asker.change_each(request, names, lambda found: {one.user: one for one in found.results})


async def _upsertion(one: about.NewScramCredential) -> alter_.ScramCredentialUpsertion:
    """Salt and hash the password, in a thread: the hash takes milliseconds by design."""
    code = code_of(MECHANISMS, one.mechanism, "mechanism")
    if not isinstance(one.password, str):
        raise TypeError(f"{one.user}: a password is a str")
    salt = random_bytes(_SALT_BYTES)
    hashed = partial(
        salted_password, _HASHES[code], one.password.encode(), salt, max(1, one.iterations)
    )
    return alter_.ScramCredentialUpsertion(
        name=one.user,
        mechanism=code,
        iterations=one.iterations,
        salt=salt,
        salted_password=await asyncio.to_thread(hashed),
    )
