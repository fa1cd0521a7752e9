"""A conversation to the ids and positions that the thinker reads. NumPy and `tokenizers`, no torch."""

from mstar_qwen_omni.prompt.layout import Prompt, lay_out
from mstar_qwen_omni.prompt.pieces import Film, Piece, Sound, Still, Turn, Words
from mstar_qwen_omni.prompt.tokens import TextTokens

__all__ = ["Film", "Piece", "Prompt", "Sound", "Still", "TextTokens", "Turn", "Words", "lay_out"]
"""What the processor uses."""
