"""Tasks and timers around the replicas: produces, deletions, checkpoints, moves, cleaning."""
