"""Owns the doctor: what may be wrong with an installation of Holdfast, what it means, and what mends it."""
