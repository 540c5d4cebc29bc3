"""Packings of documents into samples, one file each; `tokens/packing.py` is their registry."""
