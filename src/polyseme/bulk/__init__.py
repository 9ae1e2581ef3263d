"""A corpus of any size, embedded: read as a stream, written in parts that are whole or not there, resumed after the last one."""
