"""Claims of the papers, of this project and of users: their tests by runs or benchmarks, and the page of verdicts."""
