"""Owns the SQL of the store, one module for each group of rows; every function runs inside one transaction."""
