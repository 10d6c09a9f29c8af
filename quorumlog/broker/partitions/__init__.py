"""The replicas of this broker: leading, following, ISR, appends, and the logs beneath."""
