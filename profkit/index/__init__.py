"""Relations computed from the model: pure and vectorised, without judgement."""
