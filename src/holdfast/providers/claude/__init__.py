"""Owns Claude Code."""
