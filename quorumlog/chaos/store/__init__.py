"""The store of runs: the directories that `chaos run` leaves, found, listed and shown in a browser.

`runs` reads the directories, `pages` makes HTML of what was read, `server` answers a browser.
"""
