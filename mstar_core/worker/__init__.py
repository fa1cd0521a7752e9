"""A worker: engines, ready queues, streams and the loop that walks requests through compiled programs."""
