"""Owns durability: rows, transactions, dialects. No providers, no policy."""
