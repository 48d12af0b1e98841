"""Group membership as pure functions: (state, event) -> (state, effects).

The steps of each protocol and their transitions live here. Nothing here reads a clock, draws random
numbers or sends: time and jitter arrive inside events, requests leave as effects. This package is
private: its names may change in any release.
"""
