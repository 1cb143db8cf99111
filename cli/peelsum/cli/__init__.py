"""The command line: the one place that knows every part and puts them together."""
