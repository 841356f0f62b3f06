"""Attention weights of one call (`record`): fused functions run as single operations, which are observed (`watch`)."""
