"""What a team's Prefect server is told of Bertsmith: where runs work, what they need, what follows.

All of it can be applied again without harm: what is there already stays as people left it.
"""
