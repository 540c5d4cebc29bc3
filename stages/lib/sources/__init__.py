"""Where text comes from: the files of a source, and the documents and pairs in them."""
