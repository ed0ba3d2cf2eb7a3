"""For the researcher: rival watermarks, attacks, experiments and what is learned from text."""
