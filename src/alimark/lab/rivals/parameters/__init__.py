"""Typed parameters of the rival watermarks."""
