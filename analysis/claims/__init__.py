"""Claims of the papers, and what runs show of each."""
