"""Benchmarks against other clients: same broker, same run, told as ratios with their spread."""
