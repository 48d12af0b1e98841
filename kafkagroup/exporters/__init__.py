"""Exporters of metrics. Each module needs the extra of its name."""
