"""The checks that an export is the model that was trained: its files, tokenizer, tensors and figures."""
