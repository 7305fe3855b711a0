"""Prompts, texts and preferences for the recipes: the review snippets of this repository, hub datasets, local files."""

from trl_ext.data.loading import load_preferences, load_prompts, load_texts
from trl_ext.data.review_agent import REVIEW_AGENT, ReviewEnvironment, agent_demonstrations, agent_questions, answered
from trl_ext.data.reviews import HELD_OUT, REVIEWS, load_reviews, prefixes, review_pairs, review_prompts
from trl_ext.data.salad import degenerate_pairs

__all__ = [
    "HELD_OUT",
    "REVIEWS",
    "REVIEW_AGENT",
    "ReviewEnvironment",
    "agent_demonstrations",
    "agent_questions",
    "answered",
    "degenerate_pairs",
    "load_preferences",
    "load_prompts",
    "load_reviews",
    "load_texts",
    "prefixes",
    "review_pairs",
    "review_prompts",
]
