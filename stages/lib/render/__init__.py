"""Output for people: numbers, tables, charts and pages, the same wherever they are shown; a line of progress."""
