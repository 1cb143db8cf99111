"""A training script for torchrun, of which rank 1 ends in its fourth step the first time it runs.

python -m torch.distributed.run ... torch_elastic.py FOLDER OVER
"""

import os
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch_ranks import die
from torch_training import model, parameters, step_loss

from peelsum.torch import SwitchAllreduceState, TopK, hook, init_process_group

STEPS, SPARSIFIER = 6, TopK(0.2)


def main():
    folder, over = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    init_process_group("gloo")
    rank, first_run = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    state, ddp, begin = SwitchAllreduceState(over=over, compressor=SPARSIFIER), model(), 0
    checkpoint = folder / f"rank{rank}.pt"
    if checkpoint.exists():
        kept = torch.load(checkpoint)
        ddp.load_state_dict(kept["model"])
        state.load_state_dict(kept["hook"])
        begin = kept["step"]
    ddp.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5)
    for step in range(begin, STEPS):
        optimizer.zero_grad()
        loss = step_loss(ddp, rank, step)
        if first_run and (rank, step) == (1, 3):
            die()
        loss.backward()
        optimizer.step()
        fresh = checkpoint.with_suffix(".new")
        torch.save({"model": ddp.state_dict(), "hook": state.state_dict(), "step": step + 1}, fresh)
        dist.barrier()
        fresh.replace(checkpoint)
        dist.barrier()
    np.save(folder / f"trained{rank}.npy", parameters(ddp))
    (folder / f"began{rank}").write_text(str(begin))
    state.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
