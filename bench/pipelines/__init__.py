"""The pipelines on Spark: what they do a second, how late they are, and what bounds them.

Each row measures a pipeline, or a data source, beside the parts it cannot be faster than: the same
requests without Spark, Spark's own from_json, a plain COPY, a trigger that does nothing.
"""
