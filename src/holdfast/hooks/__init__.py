"""Owns the hooks: what an agent's program tells while it works, in a process that lives for a moment.

Nothing here is imported that the moment does not need: see docs/decisions/0011-a-light-hook-process.md.
"""
