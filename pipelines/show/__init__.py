"""What a person looks at: pictures, pages, examples of what a model says."""
