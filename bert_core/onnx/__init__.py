"""Models as ONNX files, which ONNX Runtime computes without torch and without this package.

Needs the extra `onnx`: onnx and onnxscript to write them, onnxruntime to run them.
"""

from bert_core.onnx.folder import (
    MODEL_FILE,
    QUANTIZED_FILE,
    encoder_alone,
    quantize,
    write_onnx_folder,
)
from bert_core.onnx.padded import INPUTS, output_names
from bert_core.onnx.running import OnnxModel
from bert_core.onnx.writing import OPSET, export_onnx
