"""What the commands `evo-l2 archive` print, one module for each."""
