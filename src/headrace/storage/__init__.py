"""Storage: makes decisions durable and gives their bytes back; knows no HTTP."""
