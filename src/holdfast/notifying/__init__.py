"""Telling a person who is not there."""
