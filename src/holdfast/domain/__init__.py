"""Owns the rules of durable sessions as pure values and functions: no I/O, no clock, no logging."""
