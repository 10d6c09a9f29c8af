"""Pure: the active controller, decide and apply per subject (KIP-631)."""
