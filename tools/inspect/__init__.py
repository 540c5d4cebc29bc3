"""Previews of a source, a corpus, or a training step, printed on a terminal."""
