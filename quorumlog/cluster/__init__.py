"""Clusters on this machine: start, stop, kill and pause their nodes."""
