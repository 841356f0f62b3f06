"""The Feature maps tab with the channels of a layer."""
