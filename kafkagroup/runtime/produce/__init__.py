"""Sends batches of records to the leaders of their partitions.

Of consumers it knows only the offsets, and the identity in a group, that a transaction commits.
"""
