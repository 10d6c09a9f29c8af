"""One module per API: decode, call a core, encode. `registry.HANDLERS` collects them by API key."""
