"""Stragglers: how fast each rank is by itself, who is slow in what, and what follows."""
