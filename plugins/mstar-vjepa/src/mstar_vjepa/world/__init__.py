"""The model `vjepa2-ac`: an action-conditioned world model in the latent space of a frame encoder."""
