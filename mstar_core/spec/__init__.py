"""What a plugin declares: the Walk Graph, chunk policies, the state machine, the model card. No torch."""
