"""Who holds the records, and how one asks: a table in this process, a table on Ray, a node, a bundle."""
