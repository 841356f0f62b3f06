"""The base class of tabs and the job runner."""
