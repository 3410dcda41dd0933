"""Writes recall-scorer.Q4_0.gguf from recall-scorer.Q8_0.gguf: the same model in 3.9 MB, so that it can stay with the
tests.

tests/data/recall/make_scorer.py recall-scorer.Q8_0.gguf recall-scorer.Q4_0.gguf
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
from gguf.quants import dequantize, quantize

Q4_0 = gguf.GGMLQuantizationType.Q4_0


def main(source: Path, out: Path) -> None:
    reader = gguf.GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(out, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        if name == "general.file_type":
            writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values)
        else:
            writer.add_tensor(tensor.name, quantize(values, Q4_0), raw_dtype=Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
