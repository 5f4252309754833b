"""Pure decisions: frozen facts in, frozen verdict out.  Nothing here reads a clock, a file or a socket."""
