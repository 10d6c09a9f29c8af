"""The readers behind `dump-log`: the content of a log directory's files, item by item."""
