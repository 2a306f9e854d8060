"""What things are: plain, frozen, typed. No behaviour beyond looking things up."""
