"""The data source `headrace`: streams as rows, rows as streams; batch and streaming."""
