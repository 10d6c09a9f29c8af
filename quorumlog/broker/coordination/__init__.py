"""Coordinators of internal topics: what those of groups share with later kinds."""
