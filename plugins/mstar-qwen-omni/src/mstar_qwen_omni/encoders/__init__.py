"""The encoders of sounds and pictures: their modules, published names and nodes."""
