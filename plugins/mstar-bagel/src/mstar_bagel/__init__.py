"""BAGEL (Deng et al., 2025, arXiv:2505.14683) as an M* plugin."""
