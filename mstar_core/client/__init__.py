"""How requests get into the runtime: the frontend, the service that faces stand on, and the Python `Engine`."""
