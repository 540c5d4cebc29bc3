"""The errors that a stage turns into an exit code."""


class UserError(Exception):
    """A mistake that the user can fix: one sentence naming the key or file, what was expected, what was found."""

    on_all_ranks = False
    """True if all ranks raise the same error."""


class RankLocalError(UserError):
    """A UserError of a single rank. The other ranks wait for it, so its exit code must end them."""


class Preempted(Exception):
    """The stage saved its work and resumes when it is started again."""

    on_all_ranks = True
