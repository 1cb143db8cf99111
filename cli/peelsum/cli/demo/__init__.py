"""`peelsum demo`: workers train a language model, and the switch program sums their gradients."""
