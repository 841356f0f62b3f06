"""The wire format of answers, the columns of the lists of names, and thumbnails of channels."""
