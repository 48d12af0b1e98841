"""Runs one membership: the steps of `member` over `transport`, its history and its metrics.

Nothing here reads records, keeps positions, or decides what an assignment is.
"""
