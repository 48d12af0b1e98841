"""Benchmarks against other clients: same broker, same run, reported as ratios with their spread."""
