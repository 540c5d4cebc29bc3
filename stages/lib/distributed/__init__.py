"""Process groups, collectives, and shards of tensors."""
