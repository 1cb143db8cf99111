"""What every rank needs, loaded once by the server that ranks are forked from."""

import torch._dynamo  # noqa: F401 - DDP loads it, in seconds
import torch_training  # noqa: F401

from peelsum.codec import warm_up

warm_up()
