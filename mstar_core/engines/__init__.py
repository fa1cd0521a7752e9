"""How nodes are run: stateless engines, and the paged-KV engine for transformers."""
