"""The readers behind `dump-log`: the content of a log directory's files, item by item.

The decoders are those of the nodes: a file that a dump calls whole is whole to a node. A node cuts
a log at the first damaged batch; a dump reads on at the end of that batch, if a batch of the known
format begins there, because a person needs to see the loss. It does not search for a later header:
records may hold the bytes of a batch. It compares indexes with `--index-sanity` only, which reads
the whole `.log` again, and repairs nothing.
"""
