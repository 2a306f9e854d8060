"""What the rules of one family share."""
