"""Recipes: everything a run is made from, as one typed model; and reading one."""
