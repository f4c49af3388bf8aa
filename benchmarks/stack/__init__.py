"""Real servers of a team's platform on one machine: for its test, its drills and its load test."""
