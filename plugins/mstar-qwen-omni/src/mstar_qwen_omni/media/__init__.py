"""Sounds and pictures to what the encoders take: mel features and patches. NumPy and Pillow, no torch."""
