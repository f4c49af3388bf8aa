"""Real servers of a team's platform on one machine, for tests, the restore drill and load test."""
