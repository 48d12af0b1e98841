"""Producers, transactions and groups that consume, transform and produce, in a simulated world."""
