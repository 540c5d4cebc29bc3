"""To and from Hugging Face: names, configs, exports, imports, and parity."""
