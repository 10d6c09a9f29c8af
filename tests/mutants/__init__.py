"""Nodes with one broken rule: a verdict that stays valid on them would prove nothing."""
