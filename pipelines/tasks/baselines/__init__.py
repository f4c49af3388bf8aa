"""What people try before a model of their own: learned from the training items alone, in seconds.

scikit-learn is imported where something is learned: reading a recipe asks for none of it.
"""
