"""A leader's answers, put into the log: needs only the Disk seam."""
