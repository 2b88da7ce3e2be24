"""file-durable and file-fast: a journal for all streams, checkpointed into a catalog and files."""
