"""acid: streams spread over LMDB environments, one transaction per batch and shard."""
