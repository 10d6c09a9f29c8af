"""One file per API: decode, ask a core, encode. `registry.HANDLERS` collects them by API key."""
