"""The decoder's operations on a GPU, in Triton: see README.md beside this file."""
