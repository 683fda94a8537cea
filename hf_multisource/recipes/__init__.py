"""Training runs described by YAML recipes: the recipe, the parts it loads, and the training itself."""
