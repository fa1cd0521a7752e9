"""Starts the Conductor and the workers, watches over them, and ends them: as threads, as processes, on other hosts."""
