"""The HTTP server over a `Service`: OpenAI's speech and models routes, clips, world models, `/generate`, health."""
