"""Continual reinforcement learning: agents that play games whose rules change without notice."""
