"""The errors that a stage turns into an exit code."""


class UserError(Exception):
    """A mistake that the user can mend: one sentence naming the key or file, what was expected, what was found."""


class RankLocalError(UserError):
    """A UserError of one rank alone: the others wait for it, so that its exit code must end them."""


class Preempted(Exception):
    """The stage saved its work and must be started again to go on."""
