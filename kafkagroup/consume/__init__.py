"""Positions, buffers and deliveries of a consumer, and the plan of its fetch requests.

Nothing here reads a clock, waits or sends: `runtime` does that. This package is private: its names
may change in any release.
"""
