"""Trains BERT to answer questions, on Python's standard library or on SQuAD.

python examples/train_bert.py                                              # one process
torchrun --nproc-per-node 4 examples/train_bert.py                         # DDP, gloo
torchrun --nproc-per-node 4 examples/train_bert.py --sum switch            # DDP, the switch
"""

from training_loop import main

if __name__ == "__main__":
    main("bert")
