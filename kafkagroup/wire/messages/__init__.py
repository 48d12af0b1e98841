"""Requests and responses, one module for each family."""
