"""Many runs of small MLPs at once on one GPU."""
