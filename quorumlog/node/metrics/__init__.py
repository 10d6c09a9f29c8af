"""`GET /metrics`: families for Prometheus, made when a scrape comes, from the state of the node.

No module of this package is imported before the first scrape.
"""
