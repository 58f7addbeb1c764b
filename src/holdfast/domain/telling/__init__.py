"""Owns what an agent is told: the request, and the part of the past that its session does not hold."""
