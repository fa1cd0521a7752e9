"""The Conductor: requests, state machines, admission. One per server; touches no tensor and imports no torch."""
