"""Parts of numpy.lib that are used."""
