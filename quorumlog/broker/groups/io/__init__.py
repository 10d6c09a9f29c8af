"""The coordinators of this broker: loading, committing, timers."""
