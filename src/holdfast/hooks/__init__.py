"""Owns the hooks: what Claude Code calls, their installation, and the tool gate.

A hook process lives for a moment, so its modules import little: see docs/decisions/0011-a-light-hook-process.md.
"""
