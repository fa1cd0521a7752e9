"""Orpheus text to speech as an M* plugin: a Llama that writes codec frames, and the SNAC codec that sounds them."""
