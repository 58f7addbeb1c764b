"""Owns the command ``holdfast``: what a shell says, put to the engine, and the answer put into words."""
