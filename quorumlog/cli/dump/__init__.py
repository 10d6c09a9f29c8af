"""What is in the files of a log directory, item by item: the readers behind `dump-log`."""
