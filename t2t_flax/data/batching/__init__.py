"""Batch k as a function of (config, k).

`windows` divides epochs, `packing` and `layouts` place the pairs of a window in rows, `updates`
takes the rows of update k, `rows` fills its arrays, and `batches` gives them the shape of the mesh.
"""
