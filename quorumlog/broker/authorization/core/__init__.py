"""Pure decisions: no socket, no clock."""
