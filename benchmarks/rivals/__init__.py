"""Models of others' systems: LHC's layout, protocols of slots, collectives, and formulas of their times."""
