"""Hugging Face: config.json, export to and import from safetensors, and the parity check."""
