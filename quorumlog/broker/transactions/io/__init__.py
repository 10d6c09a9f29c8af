"""The driver of this broker's transaction coordinators, their markers, and the verifier."""
