"""Shards of token ids, and the order in which training reads them."""
