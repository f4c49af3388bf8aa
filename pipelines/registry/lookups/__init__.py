"""What is asked of the registry: which version a name means, who had an alias, origins."""
