"""What everything else builds on: settings, errors, versions."""
