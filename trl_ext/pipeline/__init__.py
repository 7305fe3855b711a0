"""Recipes one after another, each from what an earlier one made: `trl-ext pipeline recipes/pipeline.yaml`."""
