"""HTTP over the engine; needs the extra ``server``."""
