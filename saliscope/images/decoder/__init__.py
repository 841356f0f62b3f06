"""Decode images of visitors in limited child processes, so that a crash of a decoder ends one request only."""
