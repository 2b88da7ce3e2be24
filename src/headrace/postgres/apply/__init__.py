"""Changes of rows applied to tables: the rows as they are now, or with their history."""
