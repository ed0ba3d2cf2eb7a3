"""What a text is: how it is normalised, what of it is prose, and where sentences end."""
