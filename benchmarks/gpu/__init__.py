"""All checks and figures of one CUDA device, in order of value: correctness, ceilings, speed, peers."""
