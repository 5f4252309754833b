"""The executor: runs the model.  Knows token ids, blocks and device time; knows no tenant by name."""
