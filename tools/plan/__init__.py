"""The plan of a run before it starts: memory, time, disk and cost."""
