"""profkit within other programs, such as TensorBoard and notebooks, each imported lazily."""
