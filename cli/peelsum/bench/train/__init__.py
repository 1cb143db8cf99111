"""Time of a training iteration, by backend and rate of links."""
