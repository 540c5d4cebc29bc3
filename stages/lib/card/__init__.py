"""The model card of an export: Markdown and the Hub's metadata, made from manifests."""
