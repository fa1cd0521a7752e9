"""For tests, also of plugins: scripted models, hermetic plugin sets, fake distributions, a server in a thread."""
