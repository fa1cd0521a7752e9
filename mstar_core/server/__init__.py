"""The HTTP server: OpenAI's speech and models routes, the native `/generate`, health and metrics, over a `Service`."""
