"""Requests about offsets: those that a group has committed, and those of the logs.

Nothing here decides which offset is committed, or where a partition starts.
"""
