"""The store of runs: the directories of `chaos run`, found, listed and shown in a browser.

`runs` reads the directories, `pages` makes HTML of them, `server` serves the pages.
"""
