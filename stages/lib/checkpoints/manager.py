"""The checkpoints of a run directory: which one a training starts from, and which ones stay."""

import torch.distributed as dist

from stages.lib.checkpoints import dcp
from stages.lib.distributed import collectives
from stages.lib.errors import UserError
from stages.lib.log import logger

OPTIONAL = ("loss_guard",)  # checkpoints of before have none

IDENTITY = ("recipe", "corpus", "prompt_completion", "initial")
"""What a run is known by, as far as it has them: its directory is named after their digest."""

BELONGS_TO = (*IDENTITY, "tokenizer")


class CheckpointManager:
    """The checkpoints of one run. All ranks make it and call its methods together.

    `facts` names what they belong to: {"recipe", "corpus", "tokenizer", ...}; another's checkpoint is refused.
    """

    def __init__(self, directory, facts, keep, checkpointer, lease):
        self.directory, self.facts, self.keep = directory, facts, keep
        self.checkpointer, self.lease = checkpointer, lease

    def newest(self, at_most):
        """(step, commit) of the newest complete and unchanged checkpoint up to a step; None where there is none.

        The first rank says what there is, since ranks that saw something else would wait for each other.
        """
        first = dist.get_rank() == 0
        steps = collectives.broadcast_object(dcp.complete_steps(self.directory, at_most) if first else None)
        for step in reversed(steps):
            directory = dcp.directory_of(self.directory, step)
            commit = collectives.broadcast_object(dcp.read_commit(directory) if first else None)
            self._check_owner(directory, commit)
            try:
                with collectives.raise_on_all_ranks():
                    dcp.verify(directory, commit, dist.get_rank(), dist.get_world_size())
                return step, commit
            except UserError as error:
                if first:
                    logger.warning("skipping a damaged checkpoint: %s", error)
        return None

    def _check_owner(self, directory, commit):
        for key in BELONGS_TO:
            if commit.get(key) != self.facts.get(key):
                raise UserError(
                    f"{directory} belongs to another {key} ({_short(commit.get(key))}) than this run "
                    f"({_short(self.facts.get(key))}); move it away"
                )

    def load(self, step, tensors):
        """Fill `tensors`, as given to `save`, from a checkpoint."""
        directory = dcp.directory_of(self.directory, step)
        held = {key.partition(".")[0] for key in dcp.keys_of(directory)}
        wanted = {key: value for key, value in tensors.items() if key not in OPTIONAL or key in held}
        dcp.load(directory, wanted)

    def save(self, step, tensors, facts, done):
        """Save; `done(seconds)` is called on each rank when the checkpoint is committed and older ones are deleted."""
        directory = dcp.directory_of(self.directory, step)

        def committed(seconds):
            if dist.get_rank() == 0:
                dcp.remove_uncommitted(self.directory, step)
                for old in self._beyond_keep(step):
                    dcp.remove(dcp.directory_of(self.directory, old))
            done(seconds)

        self.checkpointer.save(directory, tensors, {"step": step, **facts, **self.facts}, self.lease, committed)

    def _beyond_keep(self, at_most):
        """Steps of rolling checkpoints that may go. Later steps are another milestone's: they stay."""
        rolling = [step for step in dcp.complete_steps(self.directory, at_most) if not self._is_milestone(step)]
        return rolling[: -self.keep]

    def _is_milestone(self, step):
        return (dcp.directory_of(self.directory, step) / dcp.MILESTONE).exists()

    def before(self, step, now):
        """(step, commit) of the newest checkpoint before a step, but not before the last milestone; None for none.

        `now`: the step that the training is at; later checkpoints are another milestone's.
        """
        found = None
        if dist.get_rank() == 0:
            complete = dcp.complete_steps(self.directory, now)
            milestones = [known for known in complete if self._is_milestone(known)]
            found = max([known for known in complete if known < step] + milestones[-1:], default=None)
        found = collectives.broadcast_object(found)
        return None if found is None else self.newest(found)

    def forget_after(self, step, until):
        """Delete the checkpoints of steps (step, until], which a rollback made those of another past."""
        if dist.get_rank() == 0:
            for later in dcp.complete_steps(self.directory, until):
                if later > step:
                    dcp.remove(dcp.directory_of(self.directory, later))
        dist.barrier()


def _short(fact):
    if isinstance(fact, dict):
        return ", ".join(f"{key}={value}" for key, value in fact.items())
    return str(fact)[:16]
