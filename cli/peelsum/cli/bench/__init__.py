"""`peelsum bench`: the commands that measure this machine, and print what `peelsum.bench` returns."""

from __future__ import annotations

import typer

from peelsum.cli.bench import (
    accuracy,
    allreduce,
    codec,
    endpoint,
    fairness,
    gpu,
    loss,
    plan,
    simulation,
    soak,
    switch,
    tofino,
    train,
)

app = typer.Typer(help="Measure this machine.", no_args_is_help=True)
app.command("switch")(switch.switch)
app.command("endpoint")(endpoint.endpoint)
app.command("loss")(loss.loss)
app.command("fairness")(fairness.fairness)
app.command("allreduce")(allreduce.allreduce)
app.command("codec")(codec.codec)
app.command("plan")(plan.plan)
app.command("simulation")(simulation.simulation)
app.command("train")(train.train)
app.command("accuracy")(accuracy.accuracy)
app.command("gpu")(gpu.gpu)
app.command("profile")(switch.profile)
app.command("port-rate")(fairness.port_rate)
app.command("recovery")(codec.recovery)
app.command("soak")(soak.soak)
app.command("tofino-variants")(tofino.tofino_variants)
