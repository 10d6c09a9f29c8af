"""Raw clients: they send all that clients of the field send, and requests to be refused.

They use the codec of the protocol alone, no code of a client, and run on any event loop.
"""
