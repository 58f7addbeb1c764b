"""Owns what Holdfast knows about agents: command lines, streams, session files, failures."""
