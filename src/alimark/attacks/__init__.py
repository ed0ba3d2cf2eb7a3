"""Everything that is done to marked texts."""
