"""Examples to fine-tune on: conversations, pairs and documents, encoded, packed and mixed."""
