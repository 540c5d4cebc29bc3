"""The Llama: its layers, loss, initialization, generation, and arithmetic."""
