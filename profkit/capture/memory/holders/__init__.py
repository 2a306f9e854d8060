"""Who holds an object: reference chains from roots to it, through Python, C++ and autograd."""
