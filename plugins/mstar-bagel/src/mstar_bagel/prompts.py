"""What BAGEL is told when it is to think first (ByteDance-Seed/Bagel, `inferencer.py`): part of what it was trained on.

Each is two lines, the first with a space before its end.
"""

THINK_TO_PAINT = (
    "You should first think about the planning process in the mind and then generate the image. \n"
    "The planning process is enclosed within <think> </think> tags, i.e. "
    "<think> planning process here </think> image here"
)
"""Before a picture is made."""

THINK_TO_ANSWER = (
    "You should first think about the reasoning process in the mind and then provide the user with the answer. \n"
    "The reasoning process is enclosed within <think> </think> tags, i.e. "
    "<think> reasoning process here </think> answer here"
)
"""Before an answer is given."""
