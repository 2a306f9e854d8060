"""profkit within other programs, such as TensorBoard and notebooks; each is imported on first use."""
