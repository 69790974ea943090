"""Tests that need a GPU. `python -m gpu_tests` runs them all; it needs torch and nothing else, and keeps its output."""
