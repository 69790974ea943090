"""Where experiments run: threads of this machine, or a fleet on one GPU."""
