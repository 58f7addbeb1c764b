"""Owns the command ``holdfast``: it parses the arguments, calls the engine and prints the answer."""
