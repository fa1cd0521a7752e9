"""The decoder of the codec: frames of codes to samples, whole or as a stream."""
