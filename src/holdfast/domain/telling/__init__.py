"""Owns what an agent is told: the request, and whatever of the past its session does not hold."""
