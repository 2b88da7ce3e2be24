"""Lake tables without jars: tasks write Parquet, the driver makes one commit per batch."""
