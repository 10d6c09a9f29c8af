"""The event-loop side of group coordinators: request routing, job threads, expressions."""
