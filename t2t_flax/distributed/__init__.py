"""Device mesh, shardings of arrays, and coordination of processes."""
