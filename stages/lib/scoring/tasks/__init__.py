"""Local tasks: tasks of lm-evaluation-harness that are made from validation data, and trivial readers of them."""
