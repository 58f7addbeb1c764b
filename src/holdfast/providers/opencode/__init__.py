"""Owns opencode."""
