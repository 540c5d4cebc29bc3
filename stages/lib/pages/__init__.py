"""Pages for people: the report as HTML and as text, and the model card of an export."""
