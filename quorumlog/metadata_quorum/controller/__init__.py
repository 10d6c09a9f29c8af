"""Pure: the active controller; one module per subject decides, one place applies (KIP-631)."""
