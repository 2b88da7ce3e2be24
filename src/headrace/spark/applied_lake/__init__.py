"""Changes of rows applied to lake tables: the rows as they are now, or with their history."""
