"""The training loop and its parts.

    run.py                         a run up to a milestone: directory, lease, start, manifest
    run_lock.py                    one trainer per run directory
    initial.py                     the weights of another model to start from
    trainer.py                     the loop: steps, saves, evaluations, the end
    step.py                        one optimizer step
    state.py                       model, optimizer and loss guard
    parallelize.py                 sharding, and what the backward pass keeps or recomputes
    float8.py, cuda_graphs.py      faster products, and passes that the GPU starts at once
    stop_requests.py, watchdog.py  requests to stop, and the end of a training that hangs
    step_metrics.py                the line of a step in metrics.jsonl
    validation.py                  the loss on the validation split

settings/ has the recipe's keys and the options of a start; the other folders are named after their subjects.
"""
