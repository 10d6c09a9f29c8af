"""Rules of the protocol, checked on recorded requests and responses; no code of a server."""
