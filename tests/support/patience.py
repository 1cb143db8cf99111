"""The longest wait of a test: it ends tests that hang, and never measures speed."""

#: Seconds. What takes ten on an idle machine ends in time on one that is many times slower.
PATIENCE_S = 300.0
