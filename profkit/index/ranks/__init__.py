"""Work of several ranks or devices: collectives, ``nn.DataParallel``."""
