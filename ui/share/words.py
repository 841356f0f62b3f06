"""What is said about kept and shared things."""

GONE = (
    "The picture of this address was a visitor's own, and this browser does not have it any more. Choose it again or "
    "click an example; the other settings are as they were."
)
