"""Trains VGG19 on scikit-learn's digits, on CIFAR-10 or on a folder of images for each class.

python examples/train_vgg19.py                                              # one process
torchrun --nproc-per-node 4 examples/train_vgg19.py                         # DDP, gloo
torchrun --nproc-per-node 4 examples/train_vgg19.py --sum switch            # DDP, the switch
"""

from training_loop import main

if __name__ == "__main__":
    main("vgg19")
