"""Files on disk, each format a reader and a writer; what stands there is whole or refused."""
