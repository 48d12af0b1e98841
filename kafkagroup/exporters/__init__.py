"""Metrics for systems that gather them; each module needs the extra of its name."""
