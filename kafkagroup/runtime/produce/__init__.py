"""Sends batches of records to the leaders of their partitions.

Nothing here knows consumers or groups.
"""
