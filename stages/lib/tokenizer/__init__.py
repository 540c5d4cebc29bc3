"""Text to ids and back: SentencePiece, custom tokenizers, and the fast encoder."""
