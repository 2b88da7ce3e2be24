"""Subscriptions: cursors over streams that wake a worker, by webhook or through a wake stream."""
