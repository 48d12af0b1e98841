"""Runs that are checked as a whole, apart from the tests that mirror the package.

Here are the simulation of groups with the checker of their invariants (`sim`), scripts in lock-step
with Apache's coordinator (`lockstep`), the recorded exchanges of real Kafka (`model`), long runs in
which all fails (`soak`), and hostile brokers (`hostile`).
"""
