"""What `summarize` makes: tables, figures, and the summary's text."""
