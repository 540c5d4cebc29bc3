"""Pages for people: the report as HTML and as text, the comparison of models, and the model card of an export."""
