"""Reports on runs: one HTML file with tables and charts, which opens offline and can be sent to others."""

from metareplay.reports.page import report

__all__ = ["report"]
