"""Qwen3-Omni as an M* plugin: encoders of sound and pictures, a thinker that writes, and a talker that speaks."""
