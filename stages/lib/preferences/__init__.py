"""Preferences: prompts with a chosen and a rejected completion, as samples of two rows."""
