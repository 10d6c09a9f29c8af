"""One run of the lab: its settings, its phases, and the files that it leaves in its directory."""
