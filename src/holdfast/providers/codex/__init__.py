"""Owns Codex."""
