"""polyseme behind the interfaces of other programs, one module each."""
