"""Conversations: their messages, and the chat templates that render them as text."""
