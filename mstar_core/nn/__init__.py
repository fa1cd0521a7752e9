"""Building blocks for plugin authors, imported module by module in node code; `llama_config` alone is torch-free."""
