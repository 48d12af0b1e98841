"""Group membership as pure functions: (state, event) -> (state, effects).

No clock, no randomness, no I/O: time and jitter arrive inside events, requests leave as effects.
"""
