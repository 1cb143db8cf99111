"""Trains an LSTM language model, on Python's standard library or on a text like Penn Treebank's.

python examples/train_lm.py                                              # one process
torchrun --nproc-per-node 4 examples/train_lm.py                         # DDP, gloo
torchrun --nproc-per-node 4 examples/train_lm.py --sum switch            # DDP, the switch
"""

from training_loop import main

if __name__ == "__main__":
    main("lstm")
