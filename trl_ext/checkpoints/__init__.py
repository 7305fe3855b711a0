"""Checkpoints, read without trusting them: what is in one, whether it is healthy, and what moved since another."""
