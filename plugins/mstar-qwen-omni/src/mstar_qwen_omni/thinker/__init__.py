"""The thinker: the decoder that reads the prompt with all its media and writes the reply."""
