"""From PTX to machine code, and where machine code is kept."""
