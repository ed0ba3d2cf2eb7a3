"""What a text is: which of it is prose, how its layout is taken away, and where sentences end. Frozen: keys rest on it."""
