"""Messages and channels between the parties (torch-free), and the tensors that move beside them."""
