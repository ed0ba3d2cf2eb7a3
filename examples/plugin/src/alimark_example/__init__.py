"""An example of a package that adds to alimark: a scheme, an attack, an embedder and an engine."""
