"""Positions, buffers and deliveries of a consumer, and the plan of its fetch requests.

No module of this package reads a clock, waits or sends: `runtime` does that. The package is
private: its names may change in any release.
"""
