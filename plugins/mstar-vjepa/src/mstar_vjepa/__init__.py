"""V-JEPA 2 as an M* plugin: `clip` encodes, predicts and classifies videos, `world` rolls actions out and plans."""
