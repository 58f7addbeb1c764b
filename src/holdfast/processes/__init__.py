"""Owns processes: the machine they run on, agents that run and end, and the locks they hold."""
