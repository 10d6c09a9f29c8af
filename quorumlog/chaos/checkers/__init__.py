"""Pure: functions from a history to a verdict with witnesses."""
