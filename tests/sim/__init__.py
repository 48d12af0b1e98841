"""Whole groups in virtual time, with faults, judged from their histories."""
