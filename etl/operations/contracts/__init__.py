"""Data contracts of the Open Data Contract Standard (ODCS) 3.1: a pipeline's, and pipelines drafted from them."""
