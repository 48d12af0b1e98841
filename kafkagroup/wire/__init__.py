"""Bytes <-> values. No clock, no randomness, no I/O, and never anyio."""
