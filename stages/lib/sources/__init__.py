"""Sources of text: their files, and the documents or prompt-completion pairs in them."""
