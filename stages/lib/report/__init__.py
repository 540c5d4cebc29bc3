"""The report of `summarize`: the table of scores, the figures, and the summary's text."""
