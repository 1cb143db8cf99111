"""`peelsum demo`: workers train a language model, and the switch sums their gradients."""
