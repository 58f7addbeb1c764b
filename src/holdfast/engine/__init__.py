"""Owns the verbs: what a caller asks for, done on a store that is given."""
