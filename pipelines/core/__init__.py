"""What every stage builds on: settings, recipes, places, the cluster, the tracker, errors."""
