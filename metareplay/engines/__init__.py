"""Engines: the arithmetic on weights. Each executes plans; all land on the same weights."""
