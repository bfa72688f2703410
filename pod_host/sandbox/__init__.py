"""Processes, confinement and files of the sandbox. Knows nothing of Nylorun."""
