"""The model `vjepa2`: a video encoder, a masked predictor, and a classifier where the checkpoint has one."""
