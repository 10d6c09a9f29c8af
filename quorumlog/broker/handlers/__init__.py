"""One file per API: decode, ask a core, encode. `registry.HANDLERS` collects them by API key."""

from quorumlog.broker.handlers.api import ApiHandler, Reply

__all__ = ["ApiHandler", "Reply"]
