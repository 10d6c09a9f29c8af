"""The asynchronous administrator, by subject: topics, records, configuration, access, ...

A subject's module, with its messages, is loaded at its first use: most programs use one or two.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from quorumlog.client.admin import (
        acls,
        cluster,
        configs,
        features,
        groups,
        quotas,
        reassignments,
        records,
        topics,
        transactions,
        users,
    )
from quorumlog.client.admin.admin import Admin

__all__ = [
    "Admin", "acls", "cluster", "configs", "features", "groups", "quotas", "reassignments",
    "records", "topics", "transactions", "users",
]  # fmt: skip

_SUBJECTS: Final = frozenset(__all__) - {"Admin"}


def __getattr__(name: str) -> ModuleType:
    if name not in _SUBJECTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
