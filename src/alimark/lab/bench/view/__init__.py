"""A local page on the records of a run: `alimark bench view`."""
