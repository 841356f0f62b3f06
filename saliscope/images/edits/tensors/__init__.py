"""The computation of edits on tensors; imports torch, so that it is imported when the first edit is applied."""
