"""Decides which client reports which metrics, reads the reports and keeps their last values.

No module here has a clock or a socket: the time is an argument.
"""
