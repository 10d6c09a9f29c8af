"""One node's quorum in a process: its tasks and threads, its RPCs over HTTP and CBOR."""
