"""How long tests wait for what has to happen: a bound for what hangs, never a measure of speed."""

#: Seconds. What takes ten on an idle machine ends in time on one that is many times slower.
PATIENCE_S = 300.0
