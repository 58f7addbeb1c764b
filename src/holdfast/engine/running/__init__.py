"""Owns turns that run here: their path from the claim to the commit, and what it needs of the machine."""
