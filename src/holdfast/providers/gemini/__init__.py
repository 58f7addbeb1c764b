"""Owns the Gemini CLI."""
