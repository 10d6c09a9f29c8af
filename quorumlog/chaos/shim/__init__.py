"""Makes the disk and the wall clock of an unmodified process fail: a library loaded before libc."""
