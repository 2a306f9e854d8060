"""Records a running program. The only package that needs torch, which it imports on first use."""
