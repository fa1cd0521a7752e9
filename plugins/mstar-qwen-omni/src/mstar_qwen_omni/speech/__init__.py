"""Speech: the talker, which writes frames of codes, and code2wav, which sounds them."""
