"""Host-device synchronizations, reported while the program runs."""
