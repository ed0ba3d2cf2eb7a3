"""The rival watermarks, one module for each."""
