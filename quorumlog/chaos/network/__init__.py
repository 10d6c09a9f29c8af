"""Forwarders between the parties of a run: they cut a network without root.

One child process holds a forwarder for every directed link; `link_proxy` controls it. It parses
frames of Kafka's protocol and of the control plane, so a rule may name one kind of request.
"""
