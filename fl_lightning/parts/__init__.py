"""What every part is: its protocol, its base class, its memory, and how its arguments are checked."""
