"""The benchmark: Headrace and the Node reference server, alternately, on one machine in one run.

Only ratios from one run mean anything; docs/benchmarks.md says what each row measures.
Nothing here is imported by the product, and nothing here is a test.
"""
