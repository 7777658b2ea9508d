"""The vendor's libraries, as work that a stream takes."""
