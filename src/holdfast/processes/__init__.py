"""Owns processes: which machine this is, agents that run and end, and the locks they hold."""
