"""Problems for the encoder-decoder, one file each, behind the interface of `data.task`."""
