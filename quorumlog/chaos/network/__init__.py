"""Forwarders between the parties of a run: how the lab cuts a network without root.

One child process holds a forwarder for every directed link; `link_proxy` steers it. It knows frames
of Kafka's protocol and of the control plane, so a rule may name one kind of request.
"""
