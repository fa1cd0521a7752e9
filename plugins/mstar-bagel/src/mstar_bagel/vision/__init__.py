"""What BAGEL sees and paints with: the ViT, the autoencoder, and pictures in the sizes that both take."""
