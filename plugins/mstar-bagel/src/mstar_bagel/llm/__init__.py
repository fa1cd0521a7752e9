"""The language model: its layers, its contexts of a request, and the node that runs both."""
