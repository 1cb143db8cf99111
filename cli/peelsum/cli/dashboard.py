"""`peelsum dashboard`: print a Grafana dashboard of all metrics."""


def command() -> None:
    """Print a Grafana dashboard of all metrics as JSON, for Grafana's import."""
    from peelsum.metrics.dashboard import dashboard

    print(dashboard(), end="")
