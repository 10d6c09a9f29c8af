"""Checks requests against the ACLs, before and after their handlers: a guard for each API.

`registry.guarded` wraps the handlers of a broker with an authorizer. A broker without one does not
load this package. The operations and errors are those of Kafka 4.3: docs/authorization.md.
"""
