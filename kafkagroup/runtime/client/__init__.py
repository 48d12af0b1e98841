"""What all clients stand on: their start and stop, and calls that are repeated until a timeout.

Nothing here knows groups, fetches or offsets.
"""
