"""A running consumer, from the engine to the reader: it runs the steps of `consume`, and its member
calls it.

Nothing here decides when a member joins or leaves, or waits for a socket.
"""
