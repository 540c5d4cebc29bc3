"""The training loop and its parts.

    run.py                        a run up to a milestone: directory, lease, manifest
    run_lock.py                   one trainer per run directory
    resume.py                     the start: a checkpoint, or initial weights (initial.py)
    trainer.py                    the loop: steps, saves, evaluations, the end
    step.py                       one optimizer step
    state.py, sharding.py         model, optimizer and loss guard, sharded
    position.py, rollback.py      the place in the run, and the return to an earlier one
    rank_status.py                requests to stop and errors of all ranks
    step_metrics.py               the line of a step in metrics.jsonl
    validation.py                 the loss on the validation split

settings/ has the recipe's keys and the options of a start; the other folders are named after their subjects.
"""
