"""Tables of runs: what differs between their recipes, their final scores, means over seeds; as data and as text."""
