"""What the tests of more than one directory use."""
