"""Simulate whole groups in virtual time, with faults, and check the events of each run."""
