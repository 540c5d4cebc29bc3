"""The errors that a stage turns into an exit code."""


class UserError(Exception):
    """A mistake that the user can fix: one sentence naming the key or file, what was expected, what was found."""

    on_all_ranks = False
    """True if all ranks raise the same error."""


def is_fault(error: BaseException) -> bool:
    """Return False for what asks a process or generator to end (Ctrl-C, sys.exit), True for all else that is raised.

    Extensions raise errors of their own that are no Exception, such as the panics of Rust.
    """
    return not isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit))


class RankLocalError(UserError):
    """A UserError of a single rank. The other ranks wait for it, so its exit code must end them."""


class Preempted(Exception):
    """The stage saved its work and resumes when it is started again."""

    on_all_ranks = True
