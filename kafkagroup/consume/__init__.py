"""Positions, buffers and fetch planning: pure. No clock, no I/O, and never anyio."""
