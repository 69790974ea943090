"""Experiments: a learner, a stream, a training loop, and the record of what came out."""
