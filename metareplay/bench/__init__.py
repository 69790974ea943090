"""Benchmarks: what a step costs, measured against a clean torch loop in the same run."""
