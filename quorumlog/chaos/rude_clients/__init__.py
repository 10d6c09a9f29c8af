"""Raw clients: they send what clients of the field send, and what brokers must refuse.

They use the codec of the protocol alone, no code of a client, and run on any event loop.
"""
