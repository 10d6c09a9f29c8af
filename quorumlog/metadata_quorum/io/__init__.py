"""The quorum's task, its RPCs over HTTP and CBOR, and its election file."""
