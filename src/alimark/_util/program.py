"""What kind of program this process is."""

from __future__ import annotations

is_command_line = False
"""Whether it is the command line of alimark, which no other code shares. The command line itself sets it when it starts."""
