"""One file per API: decode, ask a core, encode."""
