"""Owns an agent without a model: a program like a coding agent's, which does what directives in its prompt say.

It keeps its own sessions, takes ids, resumes, forks, locks and fails on demand, so that everything can be
tried on a machine where no agent is installed. It needs the standard library only, and nothing of holdfast
but itself: it starts as fast as Python does.
"""
