"""The one error that means: the user can mend this. Recipes print its message alone and exit with a non-zero status."""


class UserError(ValueError):
    """A mistake in configuration, data or a reward function. The message is one line and names the fix."""
