"""What ``torch.compile`` compiled, and when."""
