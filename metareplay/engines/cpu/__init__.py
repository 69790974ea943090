"""The compiled engine for MLPs on the CPU."""
