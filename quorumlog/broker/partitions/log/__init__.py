"""The code that needs only a `Disk`: partition drivers, their logs and the log directories."""
