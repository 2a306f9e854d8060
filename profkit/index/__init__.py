"""Relations worked out from the model: pure, vectorised, without an opinion."""
