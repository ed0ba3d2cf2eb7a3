"""What kind of program this process is."""

from __future__ import annotations

is_command_line = False
"""Whether it is the command line of alimark, and not a program that uses alimark as a library. The command line sets it."""
