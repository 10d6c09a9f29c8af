"""Decides which principal may do which operation on which resource, by the ACLs."""
