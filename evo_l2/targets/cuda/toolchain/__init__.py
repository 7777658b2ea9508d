"""Compilers, their toolkit and its tools: source to cubin, and cubin to text."""
