"""Products of rows with a weight, and their gradients."""
