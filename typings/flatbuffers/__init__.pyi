"""What tosavk uses of the `flatbuffers` runtime, which has no types."""

from flatbuffers import encode as encode
from flatbuffers import number_types as number_types
from flatbuffers import packer as packer
from flatbuffers import util as util
from flatbuffers.builder import Builder as Builder
from flatbuffers.table import Table as Table

__version__: str
