"""The TOSA flatbuffer: reader and writer."""
