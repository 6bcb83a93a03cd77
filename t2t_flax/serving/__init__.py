"""Translation over HTTP: requests share batches on the device, and none changes another's result."""
