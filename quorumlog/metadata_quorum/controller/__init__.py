"""The active controller, without I/O: a module per subject decides, one place applies (KIP-631)."""
