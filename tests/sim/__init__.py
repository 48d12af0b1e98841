"""Whole groups in virtual time, with faults, checked from their runs."""
