"""One file per API: decode, ask a core, encode. `registry.HANDLERS` collects them by API key."""

from quorumlog.broker.server.api import ApiHandler, Reply

__all__ = ["ApiHandler", "Reply"]
