"""What operators compute: FLOPs and bytes from the shapes of their inputs."""
