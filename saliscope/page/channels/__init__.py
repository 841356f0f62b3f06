"""The Channels tab with the channels of a layer."""
