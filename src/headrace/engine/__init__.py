"""The engine: order, durability and visibility of what the protocol decides."""
