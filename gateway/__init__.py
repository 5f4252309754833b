"""The front of the house: HTTP in, the line in `lifecycle`, HTTP out."""
