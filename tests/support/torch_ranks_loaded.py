"""What every rank needs, loaded once by the server that ranks are forked from."""

import torch._dynamo  # optimizers load it, in seconds

import peelsum.torch  # noqa: F401
from peelsum.codec import warm_up

warm_up()
