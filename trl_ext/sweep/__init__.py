"""Runs of one recipe over many settings, one after another: `trl-ext sweep sweep.yaml`.

Settings come from a grid, at random or from Optuna. What is done is in `sweep.jsonl`, so that a sweep that was ended in
whatever way goes on where it was.
"""
