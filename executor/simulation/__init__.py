"""The simulator: the scheduler's own code on a clock that costs nothing.  README.md is the map."""
