"""Who is asking, with which keys, and the record that cannot be quietly edited."""
