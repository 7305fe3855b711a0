"""Compiled generation for TRL's trainers and ours."""

from .fast_generation import FastGeneration

__all__ = ["FastGeneration"]
