"""Trains NeuMF, a recommender, on synthetic ratings with a power law or on MovieLens.

python examples/train_ncf.py                                              # one process
torchrun --nproc-per-node 4 examples/train_ncf.py                         # DDP, gloo
torchrun --nproc-per-node 4 examples/train_ncf.py --sum switch            # DDP, the switch
"""

from training_loop import main

if __name__ == "__main__":
    main("ncf")
